"""Sound calls of the weight maps: each as a whole, then field by field of its config and tensor by tensor of its state."""

from __future__ import annotations

import torch

import positionlib as pl
from positionlib.checkpoints import maps
from tests.checkpoints.test_refusals import DEBERTA, FAMILIES, T5, state
from tests.hostile import Call

NAMES = {"t5": "t5_attention", "bloom": "bloom_attention", "deberta": "deberta_v2_attention", "deberta, shared": "deberta_v2_attention",
         "bert": "bert_attention", "bert, relative": "bert_attention", "bert input": "bert_input", "conformer": "conformer_attention"}
T5_LATER = dict(state=state(*FAMILIES["t5"][2][:4]), config=T5, bidirectional=True, bias=pl.T5Bias(3, 6, 9, bidirectional=True, edge="transformers"))
ROWS = {"rel_embeddings.weight": torch.ones(8, 8), "LayerNorm.weight": torch.ones(8), "LayerNorm.bias": torch.ones(8)}


def calls(name: str, make, given: dict, config: dict) -> dict[str, Call]:
    """One map three times: the arguments; the fields of the config; the tensors of the state."""
    return {name: (lambda state, config: make(state, config), dict(state=given, config=config)),
            f"{name} config": (lambda **fields: make(given, fields), config), f"{name} state": (lambda **tensors: make(tensors, config), given)}


CALLS: dict[str, Call] = {
    **calls("deberta_v2_table", maps.deberta_v2_table, ROWS, DEBERTA | {"norm_rel_ebd": "layer_norm", "position_buckets": -1}),
    "t5_attention later layer": (maps.t5_attention, T5_LATER),
}
for label, (make, config, names) in FAMILIES.items():
    CALLS |= calls(f"{NAMES[label]} {label}", make, state(*names), config)
