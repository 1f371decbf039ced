"""What an attention kernel has to do, from the shapes: operations of its products, bytes each once, memory beside inputs and outputs.

P pairs of a query and a key that it may see, D the width of a head, each product of a pair 2·D operations:

    forward        s = q·k, o += p v                                    4 P D        6 P D with the mass of each class: s once more
    d_query        s, dp = G·v, dq += ds k                              6 P D
    d_key          s, dp, dv += p G, dk += ds q                         8 P D
    d_table        s, dp again for the pairs within the span            4 P′ D

TUPE's product of position rows and Transformer-XL's with a row an offset are one more in each s, and one more for each gradient of such rows:
d_query's, and TUPE's in d_key, Transformer-XL's in d_table. A tile's window of rows, up to twice as wide as the tile, is counted as the tile.

The floor of a backward pass is 10 P D: five products, had the scores been made once (Dao et al. 2022, section 3.1). A table by offset and
numbers by class add no product of a pair, only bytes; the products with a table of C rows, 2·N·C·D a head, are torch's and stand outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from positionlib.errors import require, require_choice, require_count
from positionlib.kernels.admission import KINDS
from positionlib.kernels.launch import CHUNK
from positionlib.kernels.sizes import line_sizes, slab

PARTS = ("forward", "d_query", "d_key", "d_table")
PRODUCTS = {"forward": 2, "d_query": 3, "d_key": 4, "d_table": 2}  # products of a pair; the first of each is the score
LEAST = {"forward": 2, "backward": 5}
# What the mechanisms that are compiled hand to the kernel: the kind of the score function, and sizes by name of Shape.self_attention.
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "t5": ("t5", {"span": 128}),
    "shaw": ("content", {"span": 64, "query_classes": 129, "mass_classes": 129}),
    "deberta": ("content", {"span": 512, "query_classes": 512, "key_classes": 512}),
    "graph": ("content", {"bias_classes": 22, "class_bytes": 1, "pair_bytes": 4}),
    "turned_halves": ("content", {"turned": 64}),
    "turned_pairs": ("content", {"turned": 64}),
    "tupe": ("t5", {"span": 128, "row_width": 128}),
    "transformer_xl": ("content", {"on_a_line": True}),
}
SCORE_OPERATIONS = {"content": 0, "alibi_relative": 5, "alibi_symmetric": 4, "t5": 5}  # a pair, casts included; T5 also loads one number


@dataclass(frozen=True)
class Shape:
    """One call.

    Attributes
    ----------
    pairs, near : pairs that one head of one batch row may see, and those of them whose offset lies strictly within ±span.
    query_classes, key_classes, mass_classes : C of the scores by class of a query and of a key, and of the mass; 0 for none.
    bias_classes : C of a bias by class, one number a head for all rows, whose gradient is one a row until it is summed.
    class_bytes, pair_bytes : of the class and of the bias that are given for each pair; 0 where classes are by offset, and for none.
    turned : pairs of channels that are turned by an angle of their row's position.
    row_width : of the rows of positions, shared by the batch, that have a product of their own; 0 for none.
    line : rows of a line of offsets, as wide as the head, that the queries have a product with; 0 for none.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    itemsize: int
    pairs: int
    near: int = 0
    span: int = 0
    query_classes: int = 0
    key_classes: int = 0
    mass_classes: int = 0
    bias_classes: int = 0
    class_bytes: int = 0
    pair_bytes: int = 0
    turned: int = 0
    row_width: int = 0
    line: int = 0

    @classmethod
    def self_attention(cls, length: int, *, heads: int, width: int, itemsize: int, causal: bool, batch: int = 1, span: int = 0,
                       on_a_line: bool = False, **sizes: int) -> Shape:
        """Every row a query and a key at its own position, nothing hidden but the future of a causal call; ``on_a_line``, a row for each offset.

        ``sizes`` are further fields.
        """
        n = require_count("length", length)
        inside = min(max(require_count("span", span, 0) - 1, 0), n - 1)  # offsets 1..inside on one side
        one_side = inside * n - inside * (inside + 1) // 2
        pairs, near = (n * (n + 1) // 2, n + one_side) if causal else (n * n, n + 2 * one_side)
        if on_a_line:
            near, sizes["line"] = pairs, n if causal else 2 * n - 1
        return cls(batch, heads, heads, n, n, width, itemsize, pairs, near if span or on_a_line else 0, span, **sizes)


@dataclass(frozen=True)
class Cost:
    """Operations of products, operations of the score function, bytes read and written, each once, and bytes held beside inputs and outputs."""

    products: int
    score: int
    read: int
    written: int
    held: int = 0

    def seconds(self, operations_per_second: float, bytes_per_second: float) -> float:
        """The least time on a machine: products and traffic overlap at best."""
        return max(self.products / operations_per_second, (self.read + self.written) / bytes_per_second)


def cost(kind: str, part: str, shape: Shape) -> Cost:
    """What one launch of a kernel does. ``part`` is one of ``PARTS``; only a bias and rows by offset have a ``d_table`` of their own.

    The slabs of a line of offsets, one a program, are held too, with the tiles of sm_90; the bytes that pass through them are not counted.

    Raises
    ------
    PositionContractError
        an unknown kind or part, or a ``d_table`` of a kind without one.
    """
    require_choice("kind", kind, KINDS)
    require_choice("part", part, PARTS)
    require(part != "d_table" or kind == "t5" or shape.line, "part", part, f"a kernel of {kind}", "A slope's gradient is a sum that d_query leaves.")
    s, rows = shape, shape.batch * shape.heads
    pairs = rows * (s.near if part == "d_table" else s.pairs)
    by_query, by_key, wide = rows * s.queries, s.batch * s.key_heads * s.keys, 4 if s.mass_classes else s.itemsize
    state = (by_query + 2 * by_key) * s.width * s.itemsize  # q, k and v
    q, out, sums = by_query * s.width * s.itemsize, by_query * s.width * wide, 4 * by_query  # one number a row: lse, δ, an end of a table's gradient
    ends = 2 * sums if kind != "content" or s.line else 0
    query_scores, key_scores, mass = 4 * by_query * s.query_classes, 4 * rows * s.keys * s.key_classes, 4 * by_query * s.mass_classes
    by_row = query_scores + 4 * by_query * s.bias_classes  # gradients
    q_rows, k_rows = (s.itemsize * s.heads * n * s.row_width for n in (s.queries, s.keys))
    q2 = q if s.line else q_rows
    line, d_line = s.itemsize * s.heads * s.line * s.width, 4 * rows * max(s.line - 2, 0) * s.width
    read, written, held = {
        "forward": (state + mass, out + sums + mass, sums + mass + query_scores + key_scores),  # the mass is added to where it lies
        "d_query": (state + q + out + sums + by_row + mass + (sums if mass else 0),
                    q + q2 + sums + ends + by_row + rows * s.queries * s.keys * s.pair_bytes, sums + ends + by_row),
        "d_key": (state + q + 2 * sums + key_scores + mass, 2 * by_key * s.width * s.itemsize + k_rows + key_scores, key_scores),
        "d_table": (state + q + 2 * sums, d_line or _partial(s), d_line or _partial(s)),
    }[part]
    # d_query and d_key read what they add to as well; the scores by class themselves are read by every kernel.
    read += _mechanism_bytes(kind, s) + query_scores + key_scores + 4 * s.heads * s.bias_classes + q2 + k_rows + line
    if s.line:
        held += _slabs(part, s)
    products = PRODUCTS[part] + (part == "forward" and s.mass_classes > 0)
    if s.row_width or s.line:
        products += 1 + (part == "d_query" or part == ("d_table" if s.line else "d_key"))
    return Cost(2 * products * pairs * s.width, SCORE_OPERATIONS[kind] * pairs, read, written, held)


def _mechanism_bytes(kind: str, s: Shape) -> int:
    """Bytes of positions, of the score function's table, of classes and of a bias by pair, as every kernel reads them."""
    by_class = s.query_classes or s.key_classes or s.mass_classes or s.bias_classes
    table = {"content": 0, "t5": 4 * s.heads * (2 * s.span + 1)}.get(kind, 4 * s.heads)
    classes = s.queries * s.keys * s.class_bytes if s.class_bytes else 2 * 4 * (2 * s.span + 1) if by_class else 0
    return 8 * (s.queries + s.keys) * (1 + s.turned) + table + classes + s.batch * s.heads * s.queries * s.keys * s.pair_bytes


def floor(part: str, shape: Shape) -> Cost:
    """The least that any kernel of exact attention does: ``forward`` or ``backward``, inputs and outputs once."""
    require_choice("part", part, tuple(LEAST))
    rows, state = shape.batch * shape.heads, shape.itemsize * shape.width
    by_query, by_key = rows * shape.queries * state, shape.batch * shape.key_heads * shape.keys * state
    read, written = (by_query + 2 * by_key, by_query) if part == "forward" else (3 * by_query + 2 * by_key, by_query + 2 * by_key)
    return Cost(2 * LEAST[part] * rows * shape.pairs * shape.width, 0, read, written)


def backward(kind: str, shape: Shape) -> Cost:
    """All kernels of a backward pass together, the gradient of the table included."""
    parts = [cost(kind, part, shape) for part in PARTS[1:] if part != "d_table" or shape.line or kind == "t5" and shape.span]
    return replace(parts[0], **{name: sum(getattr(part, name) for part in parts) for name in ("products", "score", "read", "written", "held")})


def _partial(s: Shape) -> int:
    """Bytes of the sums by offset that ``bands`` leaves, one line for each chunk of query rows."""
    return 4 * s.batch * -(-s.queries // CHUNK) * s.heads * max(2 * s.span - 1, 0)


def _slabs(part: str, s: Shape) -> int:
    """Bytes of the slabs of all programs, in float32: one a tile of queries or keys, or a band of the line."""
    kernel = {"forward": "tile", "d_query": "query", "d_key": "key", "d_table": "band"}[part]
    sizes = line_sizes(kernel, s.width, s.queries, s.itemsize, groups=True)
    heads, length, block = {"key": (s.key_heads, s.keys, "BLOCK_N"), "band": (s.heads, s.line - 2, "BAND")}.get(kernel, (s.heads, s.queries, "BLOCK_M"))
    return 4 * slab(kernel, sizes) * s.batch * heads * -(-length // sizes[block])
