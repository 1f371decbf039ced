"""Which statements of a chapter an assert depends on."""
import ast
import symtable
from collections.abc import Iterator


def names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """(names that a statement binds or changes, names that it reads), of the chapter's own namespace."""
    table = symtable.symtable(ast.unparse(statement), "", "exec")
    binds = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    reads = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    inner = table.get_children()
    while inner:
        scope = inner.pop()
        reads |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        inner += scope.get_children()
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        binds |= {root(changed) for changed in changes(statement)}
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


def feeding(trees: list[ast.Module], number: int, last: ast.stmt) -> list[tuple[int, ast.stmt]]:
    """(cell, statement) of what the statement `last` of cell `number` depends on, in the order of the text, with itself."""
    found, needed = [(number, last)], names(last)[1]
    for cell in range(number, -1, -1):
        body = trees[cell].body
        for statement in reversed(body[: body.index(last)] if cell == number else body):
            binds, reads = names(statement)
            # A backward pass writes into leaves that it does not name.
            if binds & needed or cell == number and ".backward()" in ast.unparse(statement):
                found.append((cell, statement))
                if not isinstance(statement, ast.For | ast.With | ast.AugAssign | ast.Expr) and not any(changes(statement)):
                    needed -= binds
                needed |= reads
    return found[::-1]
