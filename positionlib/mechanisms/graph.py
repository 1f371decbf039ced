"""Graph structure as node rows, pair bias and path bias (Ying et al. 2021, section 3.1; microsoft/Graphormer ac154fe).

    h_i = x_i + z⁻[in(i)] + z⁺[out(i)]          s_hij = q_hi · k_hj / √d + b_h[φ(i, j)] + c_hij
    φ: shortest-path distance, disconnected pairs in a class of their own; c: a mean over the edges e_1 … e_N of one shortest path

    paper     c_hij = (1/N) Σ_n x_{e_n} · w_nh                      features x [E, F]; F numbers a hop and head
    released  c_ij  = (1/N) Σ_n ē_n M_n,  hops past the table dropped and N clamped to it    ē_n [H]: mean of the edge's category rows
    direct    c_ij  = ē of the edge i → j, else 0                   edge_type "single" of the release

Contract
- coordinate source: a :class:`Graph`; a geometry's positions are node ids. With a graph token, id 0 is the token and node n is n + 1.
- changed tensor: the input state, once, by degrees; the scores by distance and path. Nothing here hides a pair.
- shape: rows [N, D]; bias [1|B, H, Q, K], gathered from [H, N, N] by node ids; a fused kernel reads [N, N] classes, one byte each, instead.
- parameter or buffer state: degree tables, [max_distance + 2, H] distances (the last row is the disconnected class), path weights.
- training path: a distance row collects all pairs at that distance; a degree past the data stays untrained.
- runtime offset: none; a graph has no first node. Another node order moves every object: R[perm][:, perm].
- failure modes: nodes reordered without their pairs, −1 for "disconnected" used as an index, one direction's degree for both.
- compiled or exported: the search of from_edges runs before; ids are looked at by torch alone, which refuses one without a row.

The release feeds the row sums of the adjacency (out-degrees) to both degree tables, and its collator hides pairs at distance ≥ 20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, pad  # unlike an index, an embedding refuses a negative id

from positionlib.contract import checked
from positionlib.errors import PositionRangeError, require, require_choice, require_count, whole_number
from positionlib.mechanisms.graph_bias import DistanceBias
from positionlib.rules import readable, require_values
from positionlib.terms import StateRows
from positionlib.transport import Field, Move, transport

PATH_FORMS = ("paper", "released", "direct")
DISCONNECTED = -1  # in Graph.distance; a class of its own in every table, never an index


@checked
@dataclass(frozen=True, eq=False)
class Graph:
    """Structure of one graph: distances and hops by pair, degrees by node.

    Attributes
    ----------
    distance : int64 [N, N], edges on a shortest path from row to column; DISCONNECTED (−1) where there is none.
    in_degree, out_degree : int64 [N].
    path_edges : int64 [N, N, L], edge ids of one shortest path in order, −1 after its end.
    """

    distance: Int[Tensor, "N N"]
    in_degree: Int[Tensor, "N"]
    out_degree: Int[Tensor, "N"]
    path_edges: Int[Tensor, "N N L"]

    def __post_init__(self) -> None:
        n = len(self.distance)
        require(n > 0 and self.path_edges.shape[-1] > 0, "path_edges", self.path_edges, "a node or more, and room for a hop", "Build it by Graph.from_edges.")
        if readable(self.path_edges):
            low = int(self.path_edges.min())
            require(low >= -1, "path_edges", low, "edge ids, −1 after the end of a path", "Number edges from 0.")
        for name, shape in (("distance", (n, n)), ("in_degree", (n,)), ("out_degree", (n,)), ("path_edges", (n, n))):
            t = getattr(self, name)
            require(t.dtype == torch.int64 and t.shape[: len(shape)] == shape and t.ndim == len(shape) + (name == "path_edges"), name, t,
                    f"int64 of shape {shape}" + ", hops last" * (name == "path_edges"), "Build it by Graph.from_edges.")

    @classmethod
    @checked
    def from_edges(cls, nodes: int, edges: Sequence[tuple[int, int]]) -> Graph:
        """Breadth-first search from every node along directed edges (source, target), on the host, for small graphs.

        An undirected edge is given twice. Of several shortest paths, the one through the smallest possible largest inner node is
        kept, which is the path that the release's Floyd–Warshall loop finds.
        """
        require_count("nodes", nodes)
        pairs = all(isinstance(e, Sequence) and len(e) == 2 and all(whole_number(v) is not None and 0 <= v < nodes for v in e) for e in edges)
        require(pairs, "edges", edges, f"pairs of ids in 0..{nodes - 1}", "Count nodes from 0.")
        number = {(int(a), int(b)): i for i, (a, b) in enumerate(edges)}
        require(len(number) == len(edges), "edges", edges, "each pair once", "Merge the features of parallel edges.")
        after = [[b for a, b in number if a == node] for node in range(nodes)]
        reach = [_breadth_first(after, node) for node in range(nodes)]
        paths, longest = _shortest_paths(reach, number), max(1, max(map(max, reach)))
        return cls(torch.tensor(reach), torch.tensor([sum(b == n for _, b in number) for n in range(nodes)]),
                   torch.tensor([len(a) for a in after]),
                   torch.tensor([[path + [-1] * (longest - len(path)) for path in row] for row in paths]))

    @checked
    def permute(self, order: Int[Tensor, "N"]) -> Graph:
        """The same graph with node order[n] stored at n: rows by order, pairs by [order][:, order]. Edge ids stay."""
        axes = {"distance": "N N", "in_degree": "N", "out_degree": "N", "path_edges": "N N hops"}
        moved = transport({name: Field(getattr(self, name), names) for name, names in axes.items()}, move=Move.permute(order))
        return Graph(**{name: field.values for name, field in moved.items()})

    @checked
    def within(self, limit: int) -> Bool[Tensor, "N N"]:
        """True where the distance is below ``limit``: what the released collator lets a row read (limit 20). Disconnected is False."""
        return (self.distance >= 0) & (self.distance < require_count("limit", limit, 0))


class GraphDegrees(nn.Module):
    """module(graph) returns :class:`StateRows` [N, D]: an in-degree row plus an out-degree row for each node, to be added once."""

    def __init__(self, max_degree: int, d_model: int) -> None:
        super().__init__()
        shape = (require_count("max_degree", max_degree, 0) + 1, require_count("d_model", d_model))
        self.in_weight, self.out_weight = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        for weight in (self.in_weight, self.out_weight):
            nn.init.normal_(weight, std=0.02)

    @checked
    def forward(self, graph: Graph) -> StateRows:
        for name in ("in_degree", "out_degree"):
            _require_rows(name, getattr(graph, name), len(self.in_weight))
        return StateRows(rows=embedding(graph.in_degree, self.in_weight) + embedding(graph.out_degree, self.out_weight), mark="graph_degrees")


class GraphPath(nn.Module):
    """module(graph, edges) returns c, [H, N, N]. ``form`` is named by the checkpoint: paper, released or direct.

    ``edges`` are features [E, width] for the paper's form, and category rows, int64 [E, F], of a table of ``width`` rows otherwise.
    The paper's form needs weights for every hop and refuses a longer path; the released form drops what lies past the table.
    """

    @checked
    def __init__(self, heads: int, width: int, max_hops: int = 1, *, form: str) -> None:
        super().__init__()
        self.form, self.heads, self.max_hops = require_choice("form", form, PATH_FORMS), require_count("heads", heads), require_count("max_hops", max_hops)
        require(form != "direct" or max_hops == 1, "max_hops", max_hops, "1 in the direct form", "It reads one edge.")
        require_count("width", width)
        inner = width if form == "paper" else heads
        self.edge_weight = None if form == "paper" else nn.Parameter(torch.empty(width, heads))
        self.hop_weight = None if form == "direct" else nn.Parameter(torch.empty(max_hops, inner, heads))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    @checked
    def forward(self, graph: Graph, edges: Float[Tensor, "E F"] | Int[Tensor, "E F"]) -> Float[Tensor, "H N N"]:
        floats = edges.dtype.is_floating_point
        if self.form == "paper":
            width, dtype = self.hop_weight.shape[1], self.hop_weight.dtype
            require(edges.dtype == dtype and edges.shape[1] == width, "edges", edges, f"{dtype} features [E, {width}]", "Give one row an edge.")
            _require_rows("distance", graph.distance, self.max_hops + 1)
        else:
            require(not floats, "edges", edges, "category rows, int64 [E, F]", "Embed ids, not features.")
            _require_rows("edges", edges, len(self.edge_weight))
        if readable(graph.path_edges):
            last = int(graph.path_edges.max())
            require(len(edges) > last, "edges", edges, f"at least {last + 1} rows", "One row an edge.")
        vectors = edges if self.form == "paper" else embedding(edges, self.edge_weight).mean(1)
        hops = graph.path_edges[..., : self.max_hops]
        on_path = torch.cat((vectors, vectors.new_zeros(1, vectors.shape[1])))[hops]  # id −1 reads the zero row
        if self.form == "direct":
            return (on_path[:, :, 0] * (graph.distance == 1)[..., None]).movedim(-1, 0)
        total = torch.einsum("ijnf,nfh->hij", on_path, self.hop_weight[: hops.shape[-1]])
        return total / graph.distance.clamp(1, self.max_hops)


class GraphBias(nn.Module):
    """module(graph) or module(graph, edges) returns :class:`DistanceBias`: distance, path where it has one, graph token where it has one.

    Parameters
    ----------
    max_distance : largest distance with a row; a longer path is refused, since a clipped one would share the last row unnoticed.
    path : a :class:`GraphPath`, or None.
    graph_token : put a token in front, whose row and column get one number a head.

    Raises
    ------
    PositionRangeError
        a distance past the table.
    PositionContractError
        edges without a path module, or the reverse.
    """

    @checked
    def __init__(self, heads: int, max_distance: int, *, path: GraphPath | None = None, graph_token: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(require_count("max_distance", max_distance, 0) + 2, require_count("heads", heads)))
        require(path is None or path.heads == heads, "path", getattr(path, "heads", path), f"a path module of {heads} heads", "Match the heads.")
        self.token_weight = nn.Parameter(torch.empty(heads)) if graph_token else None
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)
        self.path = path

    @checked
    def classes(self, distance: Int[Tensor, "N N"]) -> Int[Tensor, "N N"]:
        """Table row of each pair: its distance, or the last row where it is disconnected."""
        _require_rows("distance", distance, len(self.weight) - 1)
        # A compiled graph checks nothing above: a distance past the table must not meet the disconnected row, nor a token's after it.
        distance = distance.masked_fill(distance >= len(self.weight) - 1, len(self.weight) + 1)
        return distance.masked_fill(distance == DISCONNECTED, len(self.weight) - 1)

    @checked
    def forward(self, graph: Graph, edges: Tensor | None = None) -> DistanceBias:
        require((edges is None) == (self.path is None), "edges", edges, "edges exactly when the module has a path", "Pass both or neither.")
        table, classes, path = self.weight, self.classes(graph.distance), None if self.path is None else self.path(graph, edges)
        if self.token_weight is not None:
            table, classes = torch.cat((table, self.token_weight[None])), pad(classes, (1, 0, 1, 0), value=len(table))
            path = None if path is None else pad(path, (1, 0, 1, 0))
        return DistanceBias(table=table, classes=classes, path=path)


def _require_rows(name: str, ids: Tensor, rows: int) -> None:
    low = DISCONNECTED if name == "distance" else 0
    worst = next((int(v) for v in (ids.max(), ids.min()) if not low <= int(v) < rows), None) if readable(ids) else None
    if worst is not None:
        raise PositionRangeError(name, worst, f"{low}..{rows - 1}", "Build a larger table, or cut the graph.")


def _breadth_first(after: list[list[int]], start: int) -> list[int]:
    distance, queue = [DISCONNECTED] * len(after), deque([start])
    distance[start] = 0
    while queue:
        node = queue.popleft()
        for following in after[node]:
            if distance[following] == DISCONNECTED:
                distance[following] = distance[node] + 1
                queue.append(following)
    return distance


def _shortest_paths(reach: list[list[int]], number: dict[tuple[int, int], int]) -> list[list[list[int]]]:
    """Edge ids of the kept shortest path of every pair."""
    nodes = range(len(reach))

    @cache
    def via(i: int, j: int) -> int:
        """Largest inner node of the kept path; −1 where it has none."""
        if reach[i][j] < 2:
            return -1
        return next(k for k in nodes if min(reach[i][k], reach[k][j]) > 0 and reach[i][k] + reach[k][j] == reach[i][j] and max(via(i, k), via(k, j)) < k)

    def path(i: int, j: int) -> list[int]:
        if reach[i][j] < 2:
            return [number[i, j]] if reach[i][j] == 1 else []
        return path(i, via(i, j)) + path(via(i, j), j)

    return [[path(i, j) for j in nodes] for i in nodes]
