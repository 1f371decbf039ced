"""One wrong piece at a time: where Python code that states an equation can be perturbed, and how.

A sign, a term, a factor, an index, a bound, a function or a convention changes. Tolerances and what is only printed stay; data and sizes
stay too, but where they are asked for: some statements are about nothing else.
"""
from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def exchanged(*pairs: tuple[str, str]) -> dict[str, str]:
    """Each name of a pair for the other."""
    return {a: b for pair in pairs for a, b in (pair, pair[::-1])}


FUNCTIONS = exchanged(("sin", "cos"), ("min", "max"), ("amin", "amax"), ("floor", "ceil"), ("triu", "tril"), ("clamp_min", "clamp_max"),
                      ("zeros", "ones"), ("zeros_like", "ones_like"), ("new_zeros", "new_ones")) | {
    "sum": "mean", "mean": "sum", "exp": "expm1", "log": "log1p", "sqrt": "exp", "cumsum": "cumprod", "softmax": "log_softmax"}
OVER_ALL = {"min", "max", "amin", "amax"}  # of one whole tensor: the size of a difference, which no equation names
CONVENTIONS = exchanged(("key_minus_query", "query_minus_key"), ("interleaved", "concatenated"), ("true_is_visible", "true_is_masked"),
                        ("row_major", "column_major")) | {"half_split": "interleaved"}
SIZES = {"range", "round", "enumerate", "Fraction"}  # called by name, their numbers are sizes or data; of methods and of torch all are
TOLERANCES = {"atol", "rtol", "rel_tol", "abs_tol", "dim"}
DISPLAYS = ast.List | ast.Tuple | ast.Set | ast.Dict
UNREAD = {"annotation", "returns", "decorator_list", "step", "msg"}


@dataclass(frozen=True)
class Site:
    """One perturbation: `holder` holds `old`, and `new` takes its place."""

    holder: list | ast.AST
    place: int | str
    old: ast.AST
    new: ast.AST

    def apply(self) -> None:
        ast.copy_location(self.new, self.old)
        ast.fix_missing_locations(self.new)
        if isinstance(self.holder, list):
            self.holder[self.place] = self.new
        else:
            setattr(self.holder, self.place, self.new)

    def __str__(self) -> str:
        was, now = (textwrap.shorten(ast.unparse(node), 80) for node in (self.old, self.new))
        return f"line {self.old.lineno}: {was} -> {now}"


def sites(root: ast.AST, inputs: bool = False) -> list[Site]:
    """Every perturbation below `root`, in the order of the text, with `inputs` also those of data and sizes.

    A named assert (see `decisive`) keeps its comparison and its bare numbers.
    """
    found = []
    indices = {id(node.slice) for node in ast.walk(root) if isinstance(node, ast.Subscript)}  # a tuple that is no display

    def visit(node: ast.AST, parent: ast.AST, holder: list | ast.AST, place: int | str, data: bool) -> None:
        if says(node):
            return
        found.extend(Site(holder, place, node, new) for new in perturbed(node, parent, data, inputs))
        displayed = isinstance(node, DISPLAYS) and id(node) not in indices
        if inputs and displayed and isinstance(getattr(node, "ctx", None), ast.Load) and len(node.elts) > 1:
            found.append(Site(holder, place, node, type(node)(node.elts[:-1], ast.Load())))
        if getattr(node, "decisive", False):
            for part in operands(node.test, node, "test"):
                visit(*part, data=False)
            return
        data = not inputs and (displayed or isinstance(node, ast.UnaryOp) and data)
        for child, *where in children(node):
            visit(child, node, *where, data)

    visit(root, root, root, "", False)
    return found


def children(node: ast.AST) -> Iterator[tuple[ast.AST, list | ast.AST, int | str]]:
    """(child, what holds it, where), without those that no computation reads."""
    for field, value in ast.iter_fields(node):
        if field not in UNREAD:
            places = enumerate(value) if isinstance(value, list) else [(field, value)]
            yield from ((child, value if isinstance(value, list) else node, place) for place, child in places if isinstance(child, ast.AST))


def says(node: ast.AST) -> bool:
    """Whether a node is for people or is a guard: text, what is printed, what is refused, where a name comes from."""
    name = node.func.id.lstrip("_") if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom) or name == "print" or name.startswith("require")


def decisive(node: ast.Assert) -> ast.If:
    """The same condition, which when it fails raises `Noticed`: no handler of the chapter catches that, and no other assert raises it."""
    made = ast.parse("if not _reached_(_): raise _Noticed_").body[0]
    made.test.operand.args[0], made.decisive = node.test, True
    return ast.fix_missing_locations(ast.copy_location(made, node))


def operands(test: ast.AST, holder: list | ast.AST, place: int | str) -> Iterator[tuple[ast.AST, ast.AST, list | ast.AST, int | str]]:
    """(expression, parent, holder, place) of what an assert's condition compares, without the results that are written down as numbers."""
    match test:
        case ast.Call(func=ast.Name(id="_reached_" | "all" | "any"), args=[inner]):
            yield from operands(inner, test.args, 0)
        case ast.GeneratorExp(elt=inner):
            yield from operands(inner, test, "elt")
        case ast.BoolOp(values=values):
            for n, value in enumerate(values):
                yield from operands(value, values, n)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from operands(inner, test, "operand")
        case ast.Compare(left=left, comparators=others):
            sides = [(left, test, "left"), *((other, others, n) for n, other in enumerate(others))]
            yield from ((side, test, *where) for side, *where in sides if any(isinstance(part, ast.Name) for part in ast.walk(side)))
        case _:
            yield test, test, holder, place


def perturbed(node: ast.AST, parent: ast.AST, data: bool, inputs: bool) -> Iterator[ast.AST]:
    """What may stand in place of a node, one wrong piece each."""
    other = OPERATORS.get(type(getattr(node, "op", None)))
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            yield ast.BinOp(right, ast.MatMult(), left)
        case ast.BinOp(left=left, right=right) if other:
            yield ast.BinOp(left, other(), right)
            if isinstance(node.op, ast.Add | ast.Sub):
                yield left
        case ast.AugAssign(target=target, value=value) if other:
            yield ast.AugAssign(target, other(), value)
        case ast.Compare(left=left, ops=[op], comparators=sides) if type(op) in OPERATORS:
            yield ast.Compare(left, [OPERATORS[type(op)]()], sides)
        case ast.UnaryOp(operand=inner) if not data and not sized(node, parent, inputs):
            yield inner
        case ast.Constant(value=bool()) if isinstance(parent, ast.Call | ast.keyword):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value) if not data and not isinstance(value, bool) and not sized(node, parent, inputs):
            yield ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.Constant(value=str() as word) if word in CONVENTIONS or inputs and isinstance(parent, DISPLAYS):
            yield ast.Constant(CONVENTIONS.get(word, f"not {word}"))
        case ast.Name(id=name) if name in FUNCTIONS and called(node, parent, 2 * (name in OVER_ALL)):
            yield ast.Name({"sum": "max"}.get(name, FUNCTIONS[name]), ast.Load())
        case ast.Attribute(value=value, attr=name) if name in FUNCTIONS and called(node, parent, name in OVER_ALL):
            yield ast.Attribute(value, FUNCTIONS[name], ast.Load())
        case ast.Attribute(value=value, attr="T" | "mT"):
            yield value
        case ast.Subscript(value=value, slice=ast.Tuple(elts=[ast.Name() as i, ast.Name() as j]), ctx=context):
            yield ast.Subscript(value, ast.Tuple([j, i], ast.Load()), context)
        case ast.Subscript(value=value, slice=ast.Name() | ast.Tuple(elts=[*_, ast.Name()]), ctx=ast.Load()):
            yield value
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name != "manual_seed":
            yield ast.Pass()


def called(node: ast.AST, parent: ast.AST, least: int) -> bool:
    """Whether a node is called, with at least so many arguments."""
    return isinstance(parent, ast.Call) and parent.func is node and len(parent.args) >= least


def sized(node: ast.AST, parent: ast.AST, inputs: bool) -> bool:
    """Whether a number is the tolerance of a call or, unless inputs are asked for, its size, axis or datum."""
    if isinstance(parent, ast.keyword):
        return parent.arg in TOLERANCES
    if inputs or not isinstance(parent, ast.Call) or node not in parent.args:
        return False
    if isinstance(parent.func, ast.Attribute):
        return ast.unparse(parent.func.value) != "math"
    return ast.unparse(parent.func) in SIZES
