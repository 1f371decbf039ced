"""A sound call of every public function, and what a hostile caller puts in the place of each argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import positionlib as pl
from positionlib import attention, padding, permutation, rules, terms
from positionlib.mechanisms import (
    deberta, graph_bias, learned, shaw, shaw_variants, sinusoidal, sinusoidal_algebra, sinusoidal_precision, transformer_xl, tupe,
)

Call = tuple[Callable, dict[str, Any]]
N, H, D = 5, 4, 8
IDS, CLASSES, MASK = torch.arange(N), torch.zeros(N, 6, dtype=torch.long), torch.ones(2, N, dtype=torch.bool)
CAUSAL, ENCODER = pl.AttentionGeometry.causal_self(N), pl.AttentionGeometry.encoder(N)
GRAPH = pl.Graph.from_edges(3, [(0, 1), (1, 2)])
RULE, CLIP, MEMORY = pl.T5Buckets(8, 16), rules.Clip(2), transformer_xl.SegmentMemory(1, 3, "time_first").update([torch.ones(4, 2, D)])
INDEX = deberta.DisentangledIndex(20, 8, "official")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def made(build: Callable, geometry: pl.AttentionGeometry) -> Callable:
    """Construction and first call in one: settings may be refused at either."""
    return lambda **settings: build(**settings)(geometry)


def attends(term: terms.Term | None, geometry: pl.AttentionGeometry) -> Call:
    return pl.attend, dict(q=normal(2, H, N, D), k=normal(2, H, N, D), v=normal(2, H, N, D), term=term, geometry=geometry, scale=0.5)


def of_geometry(module: nn.Module, geometry: pl.AttentionGeometry = CAUSAL) -> Call:
    return lambda geometry: module(geometry), dict(geometry=geometry)


def bias(build: Callable, **fields) -> Callable:
    return lambda **given: build(**{**fields, **given}).materialize(IDS, IDS)


PAIR = dict(query_positions=IDS, key_positions=IDS)
FIELDS = {**PAIR, "causal": True, "key_active": MASK[0], "query_segments": IDS, "key_segments": IDS, "allowed": torch.ones(N, N, dtype=torch.bool)}
PARTS = {name: getattr(GRAPH, name) for name in ("distance", "in_degree", "out_degree", "path_edges")}
Q, P = normal(2, H, N, D), normal(2, H, N, 6)
SHAW, OWN = pl.ShawRelative(2, D, sign="key_minus_query"), dict(terms=("c2c", "c2p", "p2c"), third_index="paper", projections="own")
TABLE = terms.ClassBias(table=normal(5, H), rule=CLIP, sign="key_minus_query")
SINES = dict(d_model=D, base=10.0, layout="interleaved", ladder="paper", odd_width="error")

CALLS: dict[str, Call] = {
    "frequency_ladder": (rules.frequency_ladder, dict(pairs=4, d_model=D, base=10.0, ladder="endpoint")),
    "Clip.classes": (CLIP.classes, dict(offset=IDS)), "T5Buckets.classes": (RULE.classes, dict(relative_position=IDS)),
    "t5_bucket": (rules.t5_bucket, dict(relative_position=IDS, bidirectional=True, num_buckets=8, max_distance=20, edge="exact")),
    "alibi_slopes": (rules.alibi_slopes, dict(heads=H, convention="mpt", bias_max=8)), "integers": (partial(rules.integers, "ids"), dict(values=IDS)),
    "check_sign": (rules.check_sign, dict(sign="key_minus_query")),
    "visible_from_mask": (padding.visible_from_mask, dict(mask=MASK, polarity="true_is_visible")),
    "lengths_from_mask": (padding.lengths_from_mask, dict(mask=MASK, polarity="true_is_masked")),
    "lengths_from_segments": (padding.lengths_from_segments, dict(segment_ids=IDS)), "cu_seqlens": (padding.cu_seqlens, dict(lengths=[1, 2])),
    "masked_mean": (padding.masked_mean, dict(states=normal(2, N, D), active=MASK)),
    "position_drift": (padding.position_drift, dict(trained_ids=[1, 2], served_ids=[1, 1, 2], special_ids=[1])),
    "self_attention": (permutation.self_attention, dict(x=normal(4, 3), w_q=normal(3, 2), w_k=normal(3, 2), w_v=normal(3, D),
                                                        visible=torch.ones(4, 4, dtype=torch.bool))),
    "carry": (permutation.carry, dict(matrix=normal(N, N), order=IDS)), "hand_case": (permutation.hand_case, {}),
    "AttentionGeometry": (lambda **fields: pl.AttentionGeometry(**fields).visible, FIELDS),
    "AttentionGeometry.encoder": (pl.AttentionGeometry.encoder, dict(length=3, device="cpu")),
    "AttentionGeometry.causal_self": (pl.AttentionGeometry.causal_self, dict(length=3, start=2)),
    "AttentionGeometry.decode": (pl.AttentionGeometry.decode, dict(committed_length=3, new_tokens=2)),
    "AttentionGeometry.cross": (pl.AttentionGeometry.cross, dict(target_length=3, source_length=2)),
    "AttentionGeometry.to": (CAUSAL.to, dict(device="cpu")), "AttentionGeometry.slice_queries": (CAUSAL.slice_queries, dict(start=1, stop=3)),
    "AttentionGeometry.offsets": (CAUSAL.offsets, dict(sign="key_minus_query")),
    "attend": attends(None, CAUSAL), "attend ALiBi": attends(pl.ALiBi(H)(CAUSAL), CAUSAL), "attend Shaw": attends(SHAW(CAUSAL), CAUSAL),
    "attend T5": attends(pl.T5Bias(H, 8, 16, bidirectional=False)(CAUSAL), CAUSAL), "attend XL": attends(pl.TransformerXL(D, H, D)(CAUSAL), CAUSAL),
    "attend DeBERTa": attends(pl.DeBERTa(H, H * D, 4, **OWN)(CAUSAL), CAUSAL), "attend TUPE": attends(pl.TUPE(H, H * D, N)(ENCODER), ENCODER),
    "attend BERT": attends(pl.BertRelative(N, D, variant="relative_key_query")(CAUSAL), CAUSAL),
    "choose": (lambda backend, traced, **call: attention.choose(**call, scale=attention.check_call(**call, scale=None), backend=backend, traced=traced),
               dict(q=Q, k=Q, v=Q, term=None, geometry=CAUSAL, backend="auto", traced=False)),
    "masked_softmax": (attention.masked_softmax, dict(scores=normal(2, N, 6), visible=torch.ones(2, N, 6, dtype=torch.bool))),
    "pick": (attention.pick, dict(by_class=normal(2, H, N, 3), classes=CLASSES)),
    "class_mass": (attention.class_mass, dict(probabilities=P, classes=CLASSES, num_classes=3)),
    "StateRows.add_to": (lambda rows, **rest: terms.StateRows(rows=rows, mark="m").add_to(**rest),
                         dict(rows=normal(N, D), x=normal(2, N, D), again=False, batch_first=True)),
    "ClassBias": (bias(terms.ClassBias), dict(table=normal(5, H), rule=CLIP, sign="key_minus_query", score_scale=1.0, inside_scale=False)),
    "ClassBias.materialize": (TABLE.materialize, dict(**PAIR, dtype=torch.float64)),
    "SlopeBias": (bias(terms.SlopeBias), dict(slopes=normal(H), form="symmetric", rounded=torch.bfloat16)),
    "SlopeBias.materialize": (terms.SlopeBias(slopes=normal(H), form="key_minus_last").materialize, dict(**PAIR, dtype=torch.float64)),
    "Relation": (lambda **fields: terms.Relation(**fields).classes(IDS, IDS),
                 dict(key_table=normal(5, D), value_table=normal(H, 5, 3), rule=CLIP, sign="key_minus_query")),
    "Relation.classes": (SHAW(CAUSAL).classes, PAIR),
    "inverse_frequencies": (sinusoidal.inverse_frequencies, dict(d_model=D, base=10.0, ladder="paper", odd_width="error")),
    "sinusoidal_rows": (sinusoidal.sinusoidal_rows, dict(positions=IDS, **SINES, construction_dtype=torch.float64, output_dtype=torch.float32)),
    "sinusoidal_table": (sinusoidal.sinusoidal_table, dict(length=4, offset=2, **SINES)),
    "Sinusoidal": (made(pl.Sinusoidal, CAUSAL), dict(**SINES, construction_dtype=torch.float64, output_dtype=torch.float32)),
    "Sinusoidal()": of_geometry(pl.Sinusoidal(D)), "Sinusoidal.add": (pl.Sinusoidal(D).add, dict(x=normal(2, N, D), geometry=CAUSAL, batch_first=True)),
    "layout_permutation": (sinusoidal.layout_permutation, dict(d_model=D, source="interleaved", target="concatenated", odd_width="error")),
    "convert_layout": (sinusoidal.convert_layout, dict(rows=normal(3, D), source="interleaved", target="concatenated")),
    "convert_layout_weight": (sinusoidal.convert_layout_weight, dict(weight=normal(3, D), source="interleaved", target="concatenated")),
    "wavelengths": (sinusoidal_algebra.wavelengths, dict(d_model=D, base=10.0)),
    "shift_matrix": (sinusoidal_algebra.shift_matrix, dict(k=2, d_model=D, base=10.0)),
    "commuting_matrix": (sinusoidal_algebra.commuting_matrix, dict(a=normal(3), b=normal(3))),
    "similarity": (sinusoidal_algebra.similarity, dict(offset=IDS, d_model=D, base=10.0)),
    "joint_shift_scores": (sinusoidal_algebra.joint_shift_scores, dict(form=normal(D, D), m=2, n=3, shifts=[1, 2], base=10.0)),
    "four_terms": (sinusoidal_algebra.four_terms, dict(x_i=normal(3), p_i=normal(3), x_j=normal(3), p_j=normal(3), W_q=normal(3, 2), W_k=normal(3, 2))),
    "first_position_alias": (sinusoidal_precision.first_position_alias, dict(dtype=torch.bfloat16)),
    "precision_sweep": (sinusoidal_precision.precision_sweep, dict(length=9, d_model=D, base=10.0, dtype=torch.bfloat16, cast="positions", start=1)),
    "LearnedAbsolute": (made(pl.LearnedAbsolute, CAUSAL), dict(rows=9, d_model=4, row_offset=2)), "LearnedAbsolute()": of_geometry(pl.LearnedAbsolute(N, 4)),
    "LearnedAbsolute.row_ids": (pl.LearnedAbsolute(9, 4, row_offset=2).row_ids, dict(positions=IDS)),
    **{f"position_ids_from_mask {policy}": (learned.position_ids_from_mask, dict(mask=MASK, policy=policy, past=1, padding_idx=1))
       for policy in learned.POLICIES},
    "admit_position_ids": (learned.admit_position_ids, dict(buffer=IDS, rows=N)), "row_support": (learned.row_support, dict(lengths=[1, 2], rows=3)),
    "table_gradient": (learned.table_gradient, dict(upstream=normal(2, N, D), row_ids=IDS.expand(2, N), rows=N)),
    "coverage": (learned.coverage, dict(position_ids=torch.zeros(2, N, dtype=torch.long), mask=MASK, rows=3)),
    "ALiBi": (made(pl.ALiBi, CAUSAL), dict(heads=2, form="relative", slopes=[1.0, 2.0], head_ids=[1], inside_scale=True, rounded=torch.bfloat16)),
    "ALiBi()": of_geometry(pl.ALiBi(H)), "NoPE()": of_geometry(pl.NoPE()), "T5Bias()": of_geometry(pl.T5Bias(H, 8, 16, bidirectional=False)),
    "T5Bias": (made(pl.T5Bias, CAUSAL), dict(heads=2, num_buckets=8, max_distance=16, bidirectional=False, edge="exact", score_scale=1.0)),
    "ShawRelative": (made(pl.ShawRelative, CAUSAL), dict(max_distance=2, d_head=4, sign="key_minus_query", heads=2, sides="both", d_value=3)),
    "ShawRelative()": of_geometry(SHAW), "EdgeTypes.classes": (shaw.EdgeTypes(N).classes, dict(edge_types=IDS)),
    "EdgeRelative": (lambda edge_types, **rest: pl.EdgeRelative(**rest)(CAUSAL, edge_types), dict(num_types=2, d_head=4, edge_types=CLASSES[:, :N])),
    "direct_rows": (shaw.direct_rows, dict(table=normal(3, D), classes=CLASSES)),
    "direct_key_scores": (shaw.direct_key_scores, dict(q=Q, table=normal(H, 3, D), classes=CLASSES)),
    "compact_key_scores": (shaw.compact_key_scores, dict(q=Q, table=normal(3, D), classes=CLASSES)),
    "direct_value_sum": (shaw.direct_value_sum, dict(probabilities=P, table=normal(H, 3, D), classes=CLASSES)),
    "compact_value_sum": (shaw.compact_value_sum, dict(probabilities=P, table=normal(3, D), classes=CLASSES)),
    "memory_ledger": (shaw.memory_ledger, dict(batch=2, heads=2, queries=2, keys=2, d_head=2, max_distance=2, per_head=True, d_value=3)),
    "BertRelative": (made(pl.BertRelative, CAUSAL), dict(max_positions=N, d_head=4, variant="relative_key")),
    "BertRelative()": of_geometry(pl.BertRelative(N, D, variant="relative_key")),
    "BertDistances.classes": (shaw_variants.BertDistances(N).classes, dict(offset=IDS)),
    "ZeroPadded.classes": (shaw_variants.ZeroPadded(3, False).classes, dict(offset=IDS)),
    "MusicRelative": (made(pl.MusicRelative, CAUSAL), dict(max_distance=3, d_head=4, causal=True, heads=2, sides="both", d_value=3)),
    "MusicRelative()": of_geometry(pl.MusicRelative(3, D, causal=True)),
    "MusicRelative.rows_in_order": (pl.MusicRelative(3, 4, causal=True).rows_in_order, dict(length=3)),
    "skew": (shaw_variants.skew, dict(compact=normal(2, 4, 4))), "unskew": (shaw_variants.unskew, dict(aligned=normal(2, 4, 4))),
    "skew_bidirectional": (shaw_variants.skew_bidirectional, dict(compact=normal(2, 4, 7))),
    "TransformerXL": (made(pl.TransformerXL, CAUSAL), dict(d_model=D, heads=2, d_head=4, clamp_len=3, base=10.0)),
    "TransformerXL()": of_geometry(pl.TransformerXL(D, 2, 4)),
    "relative_rows": (transformer_xl.relative_rows, dict(distances=IDS, d_model=D, clamp_len=2, base=10.0)),
    "relative_shift": (transformer_xl.relative_shift, dict(compact=normal(2, 3, 4), beyond="nan")),
    "SegmentMemory": (lambda state, **rest: transformer_xl.SegmentMemory(**rest, states=(state,)).extend(0, torch.ones(1, 2, D)),
                      dict(layers=1, mem_len=3, layout="time_first", ext_len=0, ext_rule="released", state=torch.ones(3, 2, D))),
    "SegmentMemory.extend": (MEMORY.extend, dict(layer=0, hidden=torch.ones(4, 2, D))),
    "SegmentMemory.update": (MEMORY.update, dict(hidden_states=[torch.ones(4, 2, D)])),
    "SegmentMemory.update row": (lambda hidden: MEMORY.update([hidden]), dict(hidden=torch.ones(4, 2, D))),
    "SegmentMemory.geometry": (MEMORY.geometry, dict(length=3, same_length=True, device="cpu")),
    "override_cls": (tupe.override_cls, dict(scores=normal(N, N), query_is_cls=IDS == 0, key_is_cls=IDS == 0, cls_to_other=normal(1, 1),
                                             other_to_cls=normal(1, 1))),
    "cls_buckets": (tupe.cls_buckets, dict(rule=RULE, **PAIR, cls_position=0)), "TUPE()": of_geometry(pl.TUPE(H, D, N, relative=RULE), ENCODER),
    "TUPE": (made(pl.TUPE, ENCODER), dict(heads=2, d_model=D, max_length=N, relative=RULE, cls_position=0, finish=False)),
    "TUPE.row_scores": (pl.TUPE(2, D, N).row_scores, dict(query_rows=IDS, key_rows=IDS)), "TUPE.buckets": (pl.TUPE(2, D, N, relative=RULE).buckets, PAIR),
    "UntiedRows": (lambda **fields: tupe.UntiedRows(**fields).scores(Q, Q, IDS, IDS, 1.0),
                   dict(query_rows=normal(1, H, N, 3), key_rows=normal(1, H, N, 3), cls=normal(2, H), cls_position=0,
                        relative=normal(RULE.num_buckets + 1, H), rule=RULE, **PAIR)),
    "UntiedScores": (lambda **fields: tupe.UntiedScores(**fields).scores(Q, Q, IDS, IDS, 1.0), dict(bias=normal(1, H, N, N), **PAIR)),
    "DisentangledIndex": (lambda **fields: deberta.DisentangledIndex(**fields).classes(IDS), dict(max_distance=20, buckets=8, edge="official", overflow=None)),
    "DisentangledIndex.classes": (INDEX.classes, dict(offset=IDS)), "DisentangledIndex.signed_buckets": (INDEX.signed_buckets, dict(offset=IDS)),
    "score_denominator": (deberta.score_denominator, dict(d_head=4, position_terms=["c2p"])),
    "DisentangledScores": (lambda **fields: deberta.DisentangledScores(**fields).scores(Q, Q, IDS, IDS, 1.0),
                           dict(rule=deberta.DisentangledIndex(3), third_index="paper", content=True, pos_key=normal(H, 6, D), pos_query=normal(H, 6, D))),
    "DeBERTa": (made(pl.DeBERTa, CAUSAL), dict(heads=2, d_model=D, max_distance=20, **OWN, buckets=8, edge="official", key_bias=True)),
    "place_absolute": (deberta.place_absolute, dict(x=normal(2, N, D), rows=pl.Sinusoidal(D)(CAUSAL), placement="input", stage="input")),
    "Graph": (lambda **fields: pl.GraphBias(2, 4)(pl.Graph(**fields)), PARTS),
    "GraphDegrees()": (lambda **fields: pl.GraphDegrees(3, 4)(pl.Graph(**fields)), PARTS),
    "Graph.from_edges": (pl.Graph.from_edges, dict(nodes=3, edges=[(0, 1)])),
    "Graph.from_edges pair": (lambda node: pl.Graph.from_edges(3, [(0, node)]), dict(node=1)),
    "Graph.permute": (GRAPH.permute, dict(order=torch.tensor([2, 0, 1]))), "Graph.within": (GRAPH.within, dict(limit=2)),
    "GraphBias": (pl.GraphBias, dict(heads=2, max_distance=3, path=None, graph_token=True)), "GraphDegrees": (pl.GraphDegrees, dict(max_degree=3, d_model=4)),
    "GraphBias()": (pl.GraphBias(2, 4), dict(graph=GRAPH, edges=None)),
    **{f"GraphPath {form}": (pl.GraphPath(2, 3, hops, form=form), dict(graph=GRAPH, edges=edges))
       for form, hops, edges in (("paper", 2, normal(2, 3)), ("released", 2, IDS[:2, None]), ("direct", 1, IDS[:2, None]))},
    "PairBias": (lambda pairs: graph_bias.PairBias(pairs=pairs).materialize(IDS, IDS), dict(pairs=normal(2, N, N))),
    "DistanceBias": (lambda **fields: graph_bias.DistanceBias(**fields).materialize(IDS, IDS),
                     dict(table=normal(3, 2), classes=torch.zeros(N, N, dtype=torch.long), path=normal(2, N, N))),
    "PairBias.materialize": (graph_bias.PairBias(pairs=normal(2, N, N)).materialize, dict(**PAIR, dtype=torch.float64)),
}

SIZES = {"pairs", "heads", "length", "committed_length", "new_tokens", "target_length", "source_length", "rows", "max_length", "nodes", "num_classes",
         "d_model", "d_head", "d_value", "max_distance", "max_positions", "num_types", "max_degree", "clamp_len", "num_buckets", "bias_max", "lengths", "size", "longer",
         "before", "after", "channels", "d_side", "d_words", "words", "token_types", "new_rows"}


def others(name: str, value: Any) -> dict[str, Any]:
    """Hostile values for an argument that holds ``value``: a size is not made larger than memory."""
    if isinstance(value, Tensor):
        return tensors(value)
    large = {} if name in SIZES else {"2^31 + 1": 2**31 + 1, "2^53 + 1": 2**53 + 1, "2^62": 2**62}
    meta = {"meta": value.to("meta"), "cross": pl.AttentionGeometry.cross(N, N)} if isinstance(value, pl.AttentionGeometry) else {}
    return {"None": None, "zero": 0, "negative": -1, "true": True, "half": 1.5, "NaN": float("nan"), "infinity": float("inf"), "text": "x", "no items": [],
            "mapping": {}, "object": object(), "numpy int": np.int64(3), "numpy float": np.float32(2), "numpy infinity": np.float32(np.inf),
            "numpy array": np.array([3]), "scalar": torch.tensor(3),
            "float scalar": torch.tensor(3.0), "meta scalar": torch.tensor(3, device="meta"), "pair": (1, 2), "dtype": torch.int32, "bfloat16": torch.bfloat16,
            "2^63": 2**63, "2^64": 2**64, "10^400": 10**400, **large, **meta}


def tensors(t: Tensor) -> dict[str, Any]:
    """Hostile tensors in the place of ``t``: other dtypes, devices, layouts, ranks, lengths and values."""
    values = {"2^31 - 1": 2**31 - 1, "2^31 + 1": 2**31 + 1, "2^53 + 1": 2**53 + 1, "2^62": 2**62, "2^63 - 1": 2**63 - 1, "-2^63": -(2**63), "-1": -1}
    return {"None": None, "list": [1, 2], "text": "x", "number": 3, "NaN": float("nan"), "numpy": t.numpy(),
            "float": t.float(), "double": t.double(), "bool": t != 0,
            "complex": t.to(torch.complex64), "int8": t.to(torch.int8), "uint8": t.to(torch.uint8), "bfloat16": t.to(torch.bfloat16),
            "float8": t.float().to(torch.float8_e5m2), "meta": t.to("meta"), "sparse": t.to_sparse(), "scalar": torch.tensor(1), "empty": t.new_empty(0),
            "no columns": t[..., :0], "no rows": t[:0], "one column": t[..., :1], "one rank more": t[None],
            "two ranks more": t[None, None], "one rank less": t[0],
            "turned": t.mT if t.ndim > 1 else t.flip(0), "all NaN": torch.full(t.shape, float("nan")), "all infinite": torch.full(t.shape, float("inf")),
            "strided": torch.stack((t, t), -1)[..., 0], "stretched": t.flatten()[:1].expand(t.shape), "with gradient": t.double().requires_grad_(),
            **{name: torch.full(t.shape, value) for name, value in values.items()}}
