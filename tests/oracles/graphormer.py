"""Graphormer's node features and attention bias, with its collator's ids and padding built here."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from positionlib import Graph, GraphBias, GraphDegrees, GraphPath
from tests.oracles.case import Case

UNREACHABLE = 510  # the source's number for a disconnected pair; table ids are one more, and id 0 is padding


def graphormer(case: Case) -> None:
    count = sum(name.endswith(".edge_index") for name in case.arrays)
    types, offset = case.take("attn_edge_type"), case.setting("per-feature offset")
    graphs, edges, atoms = [], [], []
    for number in range(count):
        graph, pairs = read_graph(case, number)
        graphs.append(graph)
        edges.append(types[number, pairs[:, 0], pairs[:, 1]])
        atoms.append(categories(case.take(f"graph{number}.x"), offset))
        case.check(f"graph{number}.edge_attr", edges[-1] - categories(torch.zeros_like(edges[-1]), offset))
    nodes = max(len(g.distance) for g in graphs)
    check_inputs(case, graphs, edges, atoms, nodes)
    features, biases, leaves = computed(case, graphs, edges, atoms, nodes)
    case.check("node_feature", features)
    case.check("bias_without_mask", biases)
    hidden = torch.stack([collated_mask(g, nodes, case.setting("smax")) for g in graphs])
    case.check("attn_bias", hidden)
    case.check("graph_attn_bias", biases + 2 * hidden[:, None])
    wanted = {name: leaf for name, leaf in leaves.items() if name in case.arrays}
    total = features.square().sum() + biases.square().sum()
    for name, gradient in zip(wanted, torch.autograd.grad(total, list(wanted.values()))):
        case.check(name, gradient)


def read_graph(case: Case, number: int) -> tuple[Graph, Tensor]:
    """The graph and its directed pairs [E, 2]: the listed edges, then their reverses where it is undirected."""
    nodes, listed, directed = case.setting("graphs")[number]
    pairs = torch.tensor(listed if directed else [*listed, *([b, a] for a, b in listed)])
    case.check(f"graph{number}.edge_index", pairs.T)
    graph = Graph.from_edges(nodes, pairs.tolist())
    # The release reads one direction's degree for both tables.
    graph = replace(graph, in_degree=graph.out_degree)
    case.check(f"graph{number}.shortest_path", graph.distance.masked_fill(graph.distance < 0, UNREACHABLE))
    case.check(f"graph{number}.path", inner_nodes(graph, pairs))
    return graph, pairs


def categories(raw: Tensor, offset: int) -> Tensor:
    """Ids of raw categories: every feature has a range of its own, 0 stays free for padding and 1 for the source's shift."""
    return raw + 2 + offset * torch.arange(raw.shape[1])


def inner_nodes(graph: Graph, pairs: Tensor) -> Tensor:
    """Largest inner node of each kept path, which is what the source's loop remembers."""
    ends = torch.cat((pairs[:, 1], torch.tensor([-1])))[graph.path_edges]
    following = F.pad(graph.path_edges, (0, 1), value=-1)[..., 1:]
    inner = ends.masked_fill(following < 0, -1).amax(-1)
    return inner.masked_fill(graph.distance < 0, UNREACHABLE)


def check_inputs(case: Case, graphs: list[Graph], edges: list[Tensor], atoms: list[Tensor], nodes: int) -> None:
    """The collator's arrays: ids one higher than the items', 0 for padding."""
    hops, paths = case.setting("hop"), []
    for number, (g, rows) in enumerate(zip(graphs, edges)):
        longest = UNREACHABLE if bool((g.distance < 0).any()) else max(1, int(g.distance.max()))
        on_path = torch.cat((rows, torch.full_like(rows[:1], -1)))[g.path_edges]
        on_path = F.pad(on_path, (0, 0, 0, max(0, min(hops, longest) - on_path.shape[2])), value=-1)[:, :, : min(hops, longest)]
        case.check(f"graph{number}.edge_input", on_path)
        paths.append(on_path + 1)
    case.check("x", padded(atoms, nodes))
    case.check("edge_input", padded(paths, nodes, nodes, max(p.shape[2] for p in paths)))
    case.check("spatial_pos", padded([g.distance.masked_fill(g.distance < 0, UNREACHABLE) + 1 for g in graphs], nodes, nodes))
    case.check("in_degree", padded([g.out_degree + 1 for g in graphs], nodes))


def padded(parts: list[Tensor], *sizes: int) -> Tensor:
    """Stack after filling the leading axes with zeros up to ``sizes``."""
    def fill(part: Tensor) -> Tensor:
        widths = [w for size, have in reversed(list(zip(sizes, part.shape))) for w in (0, size - have)]
        return F.pad(part, [0, 0] * (part.ndim - len(sizes)) + widths)
    return torch.stack([fill(part) for part in parts])


def computed(case: Case, graphs: list[Graph], edges: list[Tensor], atoms: list[Tensor], nodes: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Node features [G, N+1, D], biases [G, H, N+1, N+1], and the leaves under the names of their gradients."""
    weights = {name.removeprefix("param."): case.take(name, grad=True) for name in case.arrays if name.startswith("param.")}
    ids, rows = case.take("spatial_ids_used"), case.take("spatial_rows_used", grad=True)
    heads, single = case.setting("H"), case.setting("et") == "single"
    far = max(int(g.distance.max()) for g in graphs)
    table = torch.stack([rows[int((ids == i).nonzero())] if i in ids else rows.new_zeros(heads) for i in (*range(1, far + 2), UNREACHABLE + 1)])
    encoder = weights["bias.edge_encoder.weight"]
    path = GraphPath(heads, len(encoder), 1 if single else case.setting("hop"), form="direct" if single else "released")
    bias = GraphBias(heads, far, path=path, graph_token=True)
    named = {"weight": table, "path.edge_weight": encoder, "token_weight": weights["bias.graph_token_virtual_distance.weight"][0]}
    if not single:
        named["path.hop_weight"] = weights["bias.edge_dis_encoder.weight"].reshape(-1, heads, heads)[: path.max_hops]
    degrees = GraphDegrees(len(weights["node.in_degree_encoder.weight"]) - 2, weights["node.graph_token.weight"].shape[1])
    degree_rows = {f"{way}_weight": weights[f"node.{way}_degree_encoder.weight"][1:] for way in ("in", "out")}
    features, biases, terms = [], [], []
    for g, category, atom in zip(graphs, edges, atoms):
        state = F.embedding(atom, weights["node.atom_encoder.weight"]).sum(1)
        state = torch.func.functional_call(degrees, degree_rows, (g,)).add_to(state)
        features.append(F.pad(torch.cat((weights["node.graph_token.weight"], state)), (0, 0, 0, nodes - len(state))))
        category = category if single else category + 1
        term, size = torch.func.functional_call(bias, named, (g, category)), torch.arange(len(state) + 1)
        biases.append(framed(term.materialize(size, size, rows.dtype)[0], named["token_weight"], nodes))
        inner = {name.removeprefix("path."): leaf for name, leaf in named.items() if name.startswith("path.")}
        terms.append(F.pad(torch.func.functional_call(path, inner, (g, category)), (0, nodes - len(state)) * 2))
    case.check("edge_term", torch.stack(terms))
    leaves = {f"grad.{name}": leaf for name, leaf in weights.items()} | {"grad.bias.spatial_rows_used": rows}
    return torch.stack(features), torch.stack(biases), leaves


def framed(bias: Tensor, token: Tensor, nodes: int) -> Tensor:
    """The bias of one graph inside that of the largest: padding nodes get the token's row and column, and zero elsewhere."""
    here = bias.shape[-1]
    whole = F.pad(bias, (0, nodes + 1 - here) * 2)
    row = (torch.arange(nodes + 1) >= here).to(bias.dtype) * token[:, None]
    top = torch.eye(nodes + 1, dtype=bias.dtype)[0]
    return whole + row[:, None, :] * top[:, None] + row[:, :, None] * top


def collated_mask(graph: Graph, nodes: int, limit: int) -> Tensor:
    """0 or −∞: padding columns, and pairs whose distance reaches ``limit`` (a disconnected pair has the source's 510)."""
    hidden = ~graph.within(limit)
    if limit > UNREACHABLE:
        hidden = hidden & (graph.distance >= 0)
    columns = torch.arange(nodes + 1) > len(graph.distance)
    whole = F.pad(hidden, (1, nodes - len(hidden)) * 2) | columns
    return torch.zeros(whole.shape, dtype=torch.float64).masked_fill(whole, -math.inf)


SOURCES = [("graphormer_layers.py", "GraphNodeFeature, GraphAttnBias", graphormer)]
