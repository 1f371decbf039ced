"""Which statements of a chapter an assert depends on."""
import ast
import symtable
from collections.abc import Iterator


def names(statement: ast.stmt, imported: set[str] = frozenset()) -> tuple[set[str], set[str]]:
    """(names that a statement binds or changes, names that it reads), of the chapter's own namespace. A call changes no imported name."""
    table = symtable.symtable(ast.unparse(statement), "", "exec")
    binds = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    reads = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    inner = table.get_children()
    while inner:
        scope = inner.pop()
        reads |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        inner += scope.get_children()
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        binds |= {root(changed) for changed in changes(statement)} - imported
    return binds, reads


def changes(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement writes into: `x[...] = `, `x.name = ` and x in `x.method(...)`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.value.func


def root(node: ast.expr) -> str:
    """The name at the root of `name.a[b](c).d`, or nothing."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def feeding(trees: list[ast.Module], number: int, node: ast.stmt) -> list[tuple[int, ast.stmt]]:
    """(cell, statement) of what a statement of cell `number` depends on, in the order of the text, with itself.

    Of a loop or a function that holds it only what stands before it in there counts.
    """
    found, needed = [(number, node)], names(node)[1]
    imported = {name for tree in trees for statement in ast.walk(tree) if isinstance(statement, ast.Import | ast.ImportFrom)
                for name in names(statement)[0]}
    for holder, body in reversed(path(trees[number], node)):
        for cell in [number] if holder is not trees[number] else range(number, -1, -1):
            for statement in reversed(body if cell == number else trees[cell].body):
                binds, reads = names(statement, imported)
                # A backward pass writes into leaves that it does not name.
                if binds & needed or cell == number and ".backward()" in ast.unparse(statement):
                    found.append((cell, statement))
                    needed = needed - binds | reads if replaces(statement) else needed | reads
        match holder:
            case ast.For(target=target, iter=source):
                needed = needed - names(ast.Assign([target], ast.Constant(0), lineno=1))[0] | names(ast.Expr(source))[1]
            case ast.FunctionDef():
                needed = names(holder)[1]
    return found[::-1]


def path(tree: ast.Module, node: ast.stmt) -> list[tuple[ast.AST, list[ast.stmt]]]:
    """(holder, its statements before the node) from a cell down to the node."""
    holders = [part for part in ast.walk(tree) if isinstance(getattr(part, "body", None), list) and part is not node]
    return [(holder, [statement for statement in holder.body if statement.end_lineno < node.lineno])
            for holder in holders if any(part is node for part in ast.walk(holder))]


def replaces(statement: ast.stmt) -> bool:
    """Whether the names that a statement binds are new, whatever they were."""
    return not isinstance(statement, ast.For | ast.With | ast.AugAssign | ast.Expr) and not any(changes(statement))
