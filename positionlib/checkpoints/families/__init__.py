"""The families that can be converted, by name, and the plan that each makes of a configuration.

    absolute    bert, roberta, gpt2, opt                         rows added to the input
    biases      t5, t5x, mpnet, bloom, mpt, falcon-alibi         numbers added to the scores
    deberta     deberta, deberta-v2, deberta-official            products of content and position
    rotary      llama, gptj, falcon                              q and k turned
    grids       vit, layoutlmv3                                  patches and boxes
    official    transformer-xl, tupe, graphormer                 the authors' own code
"""

from positionlib.checkpoints.families import absolute, biases, deberta, grids, official, rotary

FAMILIES = {
    "bert": absolute.bert, "roberta": absolute.roberta, "gpt2": absolute.gpt2, "opt": absolute.opt,
    "t5": biases.t5, "t5x": biases.t5x, "mpnet": biases.mpnet, "bloom": biases.bloom, "mpt": biases.mpt, "falcon-alibi": biases.falcon_alibi,
    "deberta": deberta.v1, "deberta-v2": deberta.v2, "deberta-official": deberta.official,
    "llama": rotary.llama, "gptj": rotary.gptj, "falcon": rotary.falcon,
    "vit": grids.vit, "layoutlmv3": grids.layoutlmv3,
    "transformer-xl": official.transformer_xl, "tupe": official.tupe, "graphormer": official.graphormer,
}

__all__ = ["FAMILIES"]
