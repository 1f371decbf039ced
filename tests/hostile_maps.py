"""Sound calls of the weight maps and of conversion: each as a whole, then field by field of its config and tensor by tensor of its state."""

from __future__ import annotations

import torch

import positionlib as pl
from positionlib.checkpoints import contract, convert, files, maps
from tests.checkpoints.conversions import recorded
from tests.checkpoints.peers import FIXTURES
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
    "read_checkpoint": (files.read_checkpoint, dict(folder=str(FIXTURES / "gpt2"))),
    "read_safetensors": (files.read_safetensors, dict(path=str(FIXTURES / "gpt2/model.safetensors"))),
    **{name: (getattr(maps, name), dict(config=DEBERTA | {"pos_att_type": "c2p|p2c"}))
       for name in ("deberta_normed", "deberta_span", "deberta_terms", "deberta_v2_shapes")},
}
GPT2 = recorded("gpt2")
CALLS |= calls("convert", lambda state, config: convert(state, config, family="gpt2")["attention.0"], GPT2.state, GPT2.config)
CALLS["convert whole"] = (convert, dict(state=GPT2.state, config=GPT2.config, family="gpt2", declared=contract(GPT2.config, family="gpt2"),
                                        head_assignment=[0, 1, 2]))
CALLS["contract"] = (contract, dict(config=GPT2.config, family="gpt2", head_assignment=[2, 0, 1]))
for family in ("bert", "opt", "t5", "mpnet", "mpt", "falcon", "deberta-v2", "llama", "gptj", "vit", "layoutlmv3"):
    read = {name: value for name, value in recorded(family).config.items() if value is not None and not isinstance(value, str)}
    CALLS[f"contract {family}"] = (lambda family=family, **fields: contract(recorded(family).config | fields, family=family), read)
for label, (make, config, names) in FAMILIES.items():
    CALLS |= calls(f"{NAMES[label]} {label}", make, state(*names), config)
