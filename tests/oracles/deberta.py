"""DeBERTa's indices and attention blocks of Microsoft's repository and transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from positionlib import AttentionGeometry, DeBERTa, attend
from positionlib.mechanisms.deberta import DisentangledIndex
from tests.oracles.case import Case
from tests.oracles.heads import merge_heads, project, split_heads

PARTS = {"query": "Wq", "key": "Wk", "value": "Wv"}


def indices(case: Case) -> None:
    """Signed buckets and table rows. The official cell at ±(max − 1) depends on the machine, so the case says which it has."""
    relative, far = case.take("relative_pos"), case.setting("max_relative_positions")
    buckets = case.setting("position_buckets") if case.setting("position_buckets") > 0 else None
    for suffix, edge in (("official", "official"), ("hf", "transformers"), ("exact", "exact")):
        name = f"bucket_{suffix}"
        overflow = overflowed(case, name, relative, buckets, far) if edge == "official" else None
        rule = DisentangledIndex(far, buckets, edge if buckets else None, overflow)
        case.check(name, rule.signed_buckets(relative))
        case.check(f"index_{suffix}", rule.classes(relative))


def overflowed(case: Case, name: str, offset: Tensor, buckets: int | None, far: int) -> bool | None:
    """Whether the stored buckets reach ``buckets`` at every distance that is clamped to max − 1; None where no distance is."""
    edge = (offset.abs() >= far - 1).numpy()
    return bool((abs(case.arrays[name][edge]) == buckets).all()) if buckets and case.has(name) and edge.any() else None


def official(case: Case) -> None:
    attention(case, case, geometry_of(case), "official", official_leaves(case, grad=True))


def transformers_v2(case: Case) -> None:
    """The same inputs as a case of the official code, which this case names."""
    given = case.inputs or case
    attention(case, given, geometry_of(given), "transformers", official_leaves(given, grad=case.inputs is None))


def transformers_v1(case: Case) -> None:
    """q, k and v are stored as one projection, head by head; keys have no bias, nor has the key projection of positions."""
    heads, x = case.setting("H"), case.take("x", grad=True)
    stored = case.take("in_proj_weight").unflatten(0, (heads, 3, -1))
    leaves = {"x": x, "rel_embeddings": case.take("rel_embeddings", grad=True)}
    for at, part in enumerate(PARTS):
        leaves[f"{part}_proj.weight"] = stored[:, at].flatten(0, 1)
        case.check(PARTS[part], leaves[f"{part}_proj.weight"])
    leaves |= {"query_proj.bias": case.take("q_bias"), "value_proj.bias": case.take("v_bias")}
    for ours, theirs in (("pos_key_proj", "pos_proj"), ("pos_query_proj", "pos_q_proj")):
        leaves |= {f"{ours}.{kind}": case.take(f"{theirs}_{kind}") for kind in ("weight", "bias") if case.has(f"{theirs}_{kind}")}
    attention(case, case, geometry_of(case), "transformers", leaves)


def official_leaves(case: Case, grad: bool) -> dict[str, Tensor]:
    leaves = {name: case.take(name, grad=grad) for name in ("x", "query_states", "rel_embeddings") if case.has(name)}
    return leaves | {name.removeprefix("param."): case.take(name, grad=grad) for name in case.arrays if name.startswith("param.")}


def geometry_of(case: Case) -> AttentionGeometry:
    """Padded self-attention, packed segments, or queries that continue a cache."""
    if "seg" in case.settings:
        owners = torch.tensor(case.setting("seg"))
        positions = torch.tensor([int((owners[:i] == owners[i]).sum()) for i in range(len(owners))])
        geometry = AttentionGeometry(positions, positions, query_segments=owners, key_segments=owners)
        case.check("segment_ids", owners)
        case.check("positions", positions)
        case.check("mask", geometry.visible[None].long())
        return geometry
    if "q0" in case.settings:
        start, keys = case.setting("q0"), torch.arange(case.setting("K"))
        geometry = AttentionGeometry(torch.arange(start, start + case.setting("Q")), keys, causal=True)
        case.check("q_positions", geometry.query_positions)
        case.check("k_positions", keys)
        case.check("mask", geometry.visible.expand(case.setting("B"), -1, -1).long())
        return geometry
    length = case.setting("L")
    active = torch.arange(length) < length - torch.tensor(case.setting("pad"))[:, None]
    case.check("attention_mask", active.long())
    # The mask is a product: a padded query reads nothing.
    return AttentionGeometry.encoder(length, allowed=active[:, :, None] & active[:, None, :])


def attention(case: Case, given: Case, geometry: AttentionGeometry, edge: str, leaves: dict[str, Tensor]) -> None:
    heads, far, d_model = given.setting("H"), given.setting("maxrel"), leaves["x"].shape[-1]
    buckets = given.setting("buckets", default=-1)
    buckets = buckets if buckets > 0 else None
    offset = geometry.offsets("query_minus_key")
    overflow = overflowed(case, "relative_pos", offset, buckets, far) if edge == "official" else None
    own = {name for name in ("pos_key_proj", "pos_query_proj") if f"{name}.weight" in leaves}
    stated = given.setting("types", default="c2p|p2c" if len(own) != 1 else "c2p" if "pos_key_proj" in own else "p2c")
    terms = ("c2c", *(term for term in ("c2p", "p2c") if term in stated))
    module = DeBERTa(heads, d_model, far, terms=terms, third_index="released", projections="own" if own else "shared", buckets=buckets,
                     edge=edge if buckets else None, overflow=overflow, key_bias="pos_key_proj.bias" in leaves).to(leaves["x"].dtype)
    named = {"weight": leaves["rel_embeddings"], **{name: leaf for name, leaf in leaves.items() if name.startswith("pos_")}}
    content = {part: linear(leaves[f"{part}_proj.weight"], leaves.get(f"{part}_proj.bias")) for part in ("query", "key")}
    shared = {} if own else {"query_proj": content["query"], "key_proj": content["key"]}
    term = torch.func.functional_call(module, named, (geometry,), shared)
    q = split_heads(content["query"](leaves.get("query_states", leaves["x"])), heads)
    k, v = split_heads(content["key"](leaves["x"]), heads), split_heads(project(leaves["x"], leaves["value_proj.weight"], leaves["value_proj.bias"]), heads)
    mixed, trace = attend(q, k, v, term, geometry, return_trace=True)
    probabilities = trace.probabilities
    if edge == "transformers":  # a row that sees nothing is the mean of all values there
        empty = ~geometry.visible.any(-1)
        empty = empty[:, None, :, None] if empty.ndim == 2 else empty[:, None]
        probabilities = torch.where(empty, 1 / k.shape[2], probabilities)
        mixed = torch.where(empty, v.mean(2, keepdim=True), mixed)
    case.check("relative_pos", module.rule.signed_buckets(offset))
    case.check("index", module.rule.classes(offset))
    for name, part in term.parts(q, k, geometry.query_positions, geometry.key_positions, term.score_scale).items():
        case.check(name, part)
    out = merge_heads(mixed)
    case.check("attn_probs", probabilities)
    case.check("out", out)
    case.check_gradients(out, {f"grad_{name}": leaves[name] for name in ("x", "rel_embeddings") if leaves[name].requires_grad}
                         | {f"grad.{name}": leaf for name, leaf in leaves.items()})


def linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A projection whose weights stay the case's own leaves."""
    module = nn.Module()
    module.forward = lambda x: project(x, weight, bias)
    return module


SOURCES = [
    ("da_utils.py", "make_log_bucket_position", indices),
    ("disentangled_attention.py", "DisentangledSelfAttention.forward", official),
    ("modeling_deberta_v2.py", "DisentangledSelfAttention.forward", transformers_v2),
    ("modeling_deberta.py", "DisentangledSelfAttention.forward", transformers_v1),
]
