"""Position ids of padded batches: RoBERTa, OPT, and generation with decoder-only models."""

from __future__ import annotations

from positionlib.mechanisms.learned import position_ids_from_mask
from tests.oracles.case import Case
from tests.oracles.learned import lookup, with_table


def roberta(case: Case) -> None:
    padding_idx = case.setting("padding_idx")
    mask = case.take("input_ids") != padding_idx
    for name, past in (("ids_past0", 0), ("ids_past", case.setting("past", default=0))):
        case.check(name, position_ids_from_mask(mask, "roberta", past=past, padding_idx=padding_idx))


def opt(case: Case) -> None:
    mask, module, past = case.take("attention_mask"), with_table(case.take("weight")), case.setting("past", default=0)
    rows = position_ids_from_mask(mask, "opt")
    out = lookup(module, rows).rows
    case.check("row_index", rows)
    case.check("out", out)
    case.check("out_past", lookup(module, position_ids_from_mask(mask, "opt", past=past)).rows)
    case.check_gradients(out, {"grad_weight": module.weight})


def generation_4(case: Case) -> None:
    """Padding gets position 1."""
    case.check("position_ids", position_ids_from_mask(case.take("attention_mask"), "generation_v4"))


def generation_5(case: Case) -> None:
    """Padding gets position 0."""
    case.check("position_ids", position_ids_from_mask(case.take("attention_mask"), "generation_v5"))


SOURCES = [
    ("modeling_roberta.py", "create_position_ids_from_input_ids", roberta),
    ("modeling_opt.py", "OPTLearnedPositionalEmbedding", opt),
    ("generation/utils.py", "GenerationMixin.prepare_inputs_for_generation", generation_4),
    ("generation/utils.py", "GenerationMixin._prepare_position_ids_for_generation", generation_5),
]
