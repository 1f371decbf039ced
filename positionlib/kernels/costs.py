"""What an attention kernel has to do, from the shapes: operations of its products, bytes each once, memory beside inputs and outputs.

P pairs of a query and a key that it may see, D the width of a head, each product of a pair 2·D operations:

    forward        s = q·k, o += p v                                    4 P D
    d_query        s, dp = G·v, dq += ds k                              6 P D
    d_key          s, dp, dv += p G, dk += ds q                         8 P D
    d_table        s, dp again for the pairs within the span            4 P′ D

The floor of a backward pass is 10 P D: five products, had the scores been made once (Dao et al. 2022, section 3.1). A table by offset adds no
product, and its score function a few operations a pair, which run beside the products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from positionlib.errors import require, require_choice, require_count
from positionlib.kernels.admission import KINDS

PARTS = ("forward", "d_query", "d_key", "d_table")
PRODUCTS = {"forward": 2, "d_query": 3, "d_key": 4, "d_table": 2}  # products of a pair; the first of each is the score
LEAST = {"forward": 2, "backward": 5}
SCORE_OPERATIONS = {"content": 0, "alibi_relative": 5, "alibi_symmetric": 4, "t5": 5}  # a pair, casts included; T5 also loads one number


@dataclass(frozen=True)
class Shape:
    """One call. ``pairs`` are those that one head of one batch row may see, ``near`` those of them whose offset lies strictly within ±span."""

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

    @classmethod
    def self_attention(cls, length: int, *, heads: int, width: int, itemsize: int, causal: bool, batch: int = 1, span: int = 0) -> Shape:
        """Every row a query and a key at its own position, nothing hidden but the future of a causal call."""
        n = require_count("length", length)
        inside = min(max(require_count("span", span, 0) - 1, 0), n - 1)  # offsets 1..inside on one side
        one_side = inside * n - inside * (inside + 1) // 2
        pairs, near = (n * (n + 1) // 2, n + one_side) if causal else (n * n, n + 2 * one_side)
        return cls(batch, heads, heads, n, n, width, itemsize, pairs, near if span else 0, span)


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
    """What one launch of a kernel does. ``part`` is one of ``PARTS``; only a bias by offset has a ``d_table`` of its own.

    Raises
    ------
    PositionContractError
        an unknown kind or part, or a ``d_table`` of a kind without one.
    """
    require_choice("kind", kind, KINDS)
    require_choice("part", part, PARTS)
    require(part != "d_table" or kind == "t5", "part", part, f"a kernel of {kind}", "A slope's gradient is a sum that d_query leaves.")
    s, rows = shape, shape.batch * shape.heads
    pairs = rows * (s.near if part == "d_table" else s.pairs)
    by_query, by_key = rows * s.queries, s.batch * s.key_heads * s.keys
    positions = 8 * (s.queries + s.keys)
    table = 4 * s.heads * (2 * s.span + 1) if kind == "t5" else 0 if kind == "content" else 4 * s.heads
    state = by_query * s.width * s.itemsize + 2 * by_key * s.width * s.itemsize  # q, k and v
    sums = 4 * by_query  # one number a row: lse, δ, each end of a table's gradient
    learned = kind != "content"
    read, written, held = {
        "forward": (state, by_query * s.width * s.itemsize + sums, sums),
        "d_query": (state + 2 * by_query * s.width * s.itemsize + sums, by_query * s.width * s.itemsize + sums + 2 * sums * learned, sums + 2 * sums * learned),
        "d_key": (state + by_query * s.width * s.itemsize + 2 * sums, 2 * by_key * s.width * s.itemsize, 0),
        "d_table": (state + by_query * s.width * s.itemsize + 2 * sums, _partial(s), _partial(s)),
    }[part]
    return Cost(2 * PRODUCTS[part] * pairs * s.width, SCORE_OPERATIONS[kind] * pairs, read + positions + table, written, held)


def floor(part: str, shape: Shape) -> Cost:
    """The least that any kernel of exact attention does: ``forward`` or ``backward``, inputs and outputs once."""
    require_choice("part", part, tuple(LEAST))
    rows, state = shape.batch * shape.heads, shape.itemsize * shape.width
    by_query, by_key = rows * shape.queries * state, shape.batch * shape.key_heads * shape.keys * state
    read, written = (by_query + 2 * by_key, by_query) if part == "forward" else (3 * by_query + 2 * by_key, by_query + 2 * by_key)
    return Cost(2 * LEAST[part] * rows * shape.pairs * shape.width, 0, read, written)


def backward(kind: str, shape: Shape) -> Cost:
    """All kernels of a backward pass together, the gradient of the table included."""
    parts = [cost(kind, part, shape) for part in PARTS[1:] if part != "d_table" or kind == "t5" and shape.span]
    return replace(parts[0], **{name: sum(getattr(part, name) for part in parts) for name in ("products", "score", "read", "written", "held")})


def _partial(s: Shape) -> int:
    """Bytes of the sums by offset that ``bands`` leaves, one line for each chunk of query rows."""
    from positionlib.kernels.launch import CHUNK

    return 4 * s.batch * -(-s.queries // CHUNK) * s.heads * max(2 * s.span - 1, 0)
