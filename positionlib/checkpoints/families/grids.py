"""Patches and boxes: ViT and LayoutLMv3 (transformers 5.24.0).

ViT's names are those of its files, which that release keeps though its own modules have others.

    family        table                                        CLS                          joins
    vit           [1, 1 + rows · cols, D], row-major           row 0, before the patches    patches + positions, no norm
    layoutlmv3    [heads, buckets] for position, x0 and y1     a box of its own             the scores, inside the scale

LayoutLMv3 reads its boxes twice: as rows at the input, and as pairwise biases; both are parts, and so are its image's patches.
"""

from __future__ import annotations

from collections.abc import Mapping

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import TRANSFORMERS, Assignment, affine, buckets, each_layer, stated
from positionlib.checkpoints.state import counts, epsilon, fields, filled, layered, linears, norm, padding_id, position_range, switch, widths
from positionlib.errors import require, require_count
from positionlib.layers import PageInput, PatchInput, SelfAttention
from positionlib.mechanisms import BoxEmbedding, Grid, GridBias, GridResize, LearnedAbsolute, LearnedGrid
from positionlib.rules import T5Buckets


def sides(config: Mapping, name: str) -> tuple[int, int]:
    """(height, width) of a field that holds one number for both, or two."""
    (given,) = fields(config, name)
    pair = tuple(given) if isinstance(given, (list, tuple)) else (given, given)
    require(len(pair) == 2, f"config.{name}", given, "a number, or height and width", "Take it from config.json.")
    return require_count(f"config.{name}", pair[0]), require_count(f"config.{name}", pair[1])


def vit(config: Mapping, assignment: Assignment) -> Plan:
    """ViT. Another image size is read by the source's own interpolation, bicubic without corners or antialias."""
    d_model, heads = widths(config, "num_attention_heads")
    layers, inner, channels = counts(config, "num_hidden_layers", "intermediate_size", "num_channels")
    image, patch, qkv_bias = sides(config, "image_size"), sides(config, "patch_size"), switch(config, "qkv_bias")
    rows, cols = (whole // part for whole, part in zip(image, patch))
    require(rows > 0 and cols > 0, "config.patch_size", patch, f"patches within {image}", "Take both from config.json.")
    contract = stated("vit", f"{TRANSFORMERS}, models/vit/modeling_vit.py", heads, assignment, table_layout="rows_width", table_rows=1 + rows * cols,
                      cls_rule="row 0 is CLS, before the first patch", layer_sharing="input", max_positions=1 + rows * cols, added="to_patches",
                      clipping_or_bucket_rule=f"{rows} x {cols} patches, row-major; bicubic elsewhere")
    table = {"embeddings.cls_token": (1, 1, d_model), "embeddings.position_embeddings": (1, 1 + rows * cols, d_model),
             "embeddings.patch_embeddings.projection.weight": (d_model, channels, *patch), "embeddings.patch_embeddings.projection.bias": (d_model,)}
    attention = linears(d_model, "attention.query", "attention.key", "attention.value", bias=qkv_bias) | linears(d_model, "output.dense")
    rest = norm("layernorm_before", d_model) | norm("layernorm_after", d_model) | linears(d_model, "intermediate.dense", inner=inner)
    rest |= linears(inner, "output.dense", inner=d_model)
    pooled = d_model if config.get("pooler_output_size") is None else counts(config, "pooler_output_size")[0]
    pooler = linears(d_model, "pooler.dense", inner=pooled) | {"embeddings.mask_token": (1, 1, d_model)}

    def patches(conversion: Conversion) -> PatchInput:
        grid = LearnedGrid(Grid({"row": rows, "col": cols}, "row_major", ("cls",)), d_model, resize=GridResize("bicubic", False, False))
        cls, positions, weight, bias = (conversion.state[name] for name in table)
        own = {"projection.weight": weight, "projection.bias": bias, "cls": cls[0, 0], "positions.weight": positions[0]}
        return filled(PatchInput(channels, patch, grid), own, {})

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        own = conversion.inside(f"encoder.layer.{n}.attention.")
        if not qkv_bias:
            own |= {f"attention.{name}.bias": own["output.dense.bias"].new_zeros(d_model) for name in ("query", "key", "value")}
        return filled(SelfAttention(d_model, heads, None), own, {f"attention.{name}": name[0] for name in ("query", "key", "value")} | {"output.dense": "o"})

    return Plan(contract=contract, prefix="vit.", heads=affine("classifier", "decoder.0"), optional=tuple(pooler),
                read=table | layered("encoder.layer.{}.attention.", layers, attention),
                elsewhere=layered("encoder.layer.{}.", layers, rest) | norm("layernorm", d_model) | pooler,
                parts={"input": patches, **each_layer(layers, layer)})


def layoutlmv3(config: Mapping, assignment: Assignment) -> Plan:
    """LayoutLMv3: the text's input with its boxes, and attention under the biases of position, x0 and y1."""
    d_model, heads = widths(config, "num_attention_heads")
    layers, inner, words, types, rows, size, d_edge, d_side = counts(config, "num_hidden_layers", "intermediate_size", "vocab_size", "type_vocab_size",
                                                                     "max_position_embeddings", "max_2d_position_embeddings", "coordinate_size", "shape_size")
    for name in ("has_relative_attention_bias", "has_spatial_attention_bias", "text_embed"):
        require(switch(config, name), f"config.{name}", False, "True", "Without it the model reads its positions elsewhere.")
    one, far, two, wide = counts(config, "rel_pos_bins", "max_rel_pos", "rel_2d_pos_bins", "max_rel_2d_pos")
    rules = {axis: T5Buckets(count, reach, True, "transformers") for axis, count, reach in (("position", one, far), ("x", two, wide), ("y", two, wide))}
    eps, offset = epsilon(config), require_count("config.pad_token_id", padding_id(config, words), 0) + 1
    require(rows > offset, "config.max_position_embeddings", rows, f"more than {offset} rows", "Rows up to padding_idx belong to no position.")
    require(4 * d_edge + 2 * d_side == d_model, "config.coordinate_size", d_edge, f"4 · coordinate_size + 2 · shape_size = {d_model}",
            "Take them from config.json.")
    contract = stated("layoutlmv3", f"{TRANSFORMERS}, models/layoutlmv3/modeling_layoutlmv3.py", heads, assignment, table_layout="heads_buckets",
                      table_rows=one + 2 * two, relative_sign="key_minus_query", layer_sharing="stack", bias_and_scale="inside",
                      clipping_or_bucket_rule="; ".join(f"{axis}: {buckets(rule)}" for axis, rule in rules.items()) + "; x is x0, y is y1",
                      cls_rule="CLS has a box of its own: (0, 0, 0, 0) of a text, (1, 1, 999, 999) of an image", max_positions=rows - offset,
                      position_id_offset=offset, padding_convention="roberta", added="before_norm", generated_buffers=("embeddings.position_ids",))
    tables = {"word_embeddings.weight": (words, d_model), "token_type_embeddings.weight": (types, d_model), "position_embeddings.weight": (rows, d_model)}
    boxes = {f"{axis}_position_embeddings.weight": (size, width) for axis, width in (("x", d_edge), ("y", d_edge), ("h", d_side), ("w", d_side))}
    shared = {"encoder.rel_pos_bias.weight": (heads, one), "encoder.rel_pos_x_bias.weight": (heads, two), "encoder.rel_pos_y_bias.weight": (heads, two)}
    block = linears(d_model, "self.query", "self.key", "self.value", "output.dense") | norm("output.LayerNorm", d_model)
    rest = linears(d_model, "intermediate.dense", inner=inner) | linears(inner, "output.dense", inner=d_model) | norm("output.LayerNorm", d_model)
    visual, patch = {}, None
    if switch(config, "visual_embed"):
        patch, (channels, image) = sides(config, "patch_size"), counts(config, "num_channels", "input_size")
        cells = image // patch[0]
        require(patch[0] == patch[1] and cells > 0, "config.patch_size", patch, f"square patches within {image}", "Take both from config.json.")
        visual = {"cls_token": (1, 1, d_model), "pos_embed": (1, cells * cells + 1, d_model), "patch_embed.proj.weight": (d_model, channels, *patch),
                  "patch_embed.proj.bias": (d_model,)} | norm("norm", d_model)

    def patches(conversion: Conversion) -> PatchInput:
        grid = LearnedGrid(Grid({"row": cells, "col": cells}, "row_major", ("cls",)), d_model)
        cls, positions, *rest = (conversion.state[name] for name in visual)
        names = ("projection.weight", "projection.bias", "norm.weight", "norm.bias")
        return filled(PatchInput(channels, patch, grid, eps=1e-6), {"cls": cls[0, 0], "positions.weight": positions[0], **dict(zip(names, rest))}, {})

    def page(conversion: Conversion) -> PageInput:
        own = {name: tensor for name, tensor in conversion.inside("embeddings.").items() if name != "position_ids"}
        own = {name.replace("_position_embeddings.weight", "") if name in boxes else name: tensor for name, tensor in own.items()}
        module = PageInput(words, types, LearnedAbsolute(rows, d_model, row_offset=offset), BoxEmbedding(size, d_edge, d_side=d_side), eps=eps,
                           padding_id=offset - 1)
        return filled(module, {f"boxes.{name}" if name in "xyhw" else name: tensor for name, tensor in own.items()},
                      {"word_embeddings": "words", "token_type_embeddings": "types", "position_embeddings": "positions", "LayerNorm": "norm"})

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        own = conversion.inside(f"encoder.layer.{n}.attention.")
        bias = conversion["attention.0"].mechanism if n else GridBias(heads, rules, inside_scale=True)
        if not n:
            own |= {f"mechanism.weight.{axis}": conversion.state[name] for axis, name in zip(rules, shared)}
        return filled(SelfAttention(d_model, heads, bias, post_norm=eps), own,
                      {f"self.{name}": name[0] for name in ("query", "key", "value")} | {"output.dense": "o", "output.LayerNorm": "norm"})

    return Plan(contract=contract, prefix="layoutlmv3.",
                heads=affine("classifier", "classifier.dense", "classifier.out_proj", "qa_outputs.dense", "qa_outputs.out_proj"),
                generated={"embeddings.position_ids": position_range(rows)},
                read=layered("embeddings.", 1, tables | boxes | norm("LayerNorm", d_model)) | shared | visual |
                layered("encoder.layer.{}.attention.", layers, block),
                elsewhere=layered("encoder.layer.{}.", layers, rest) | (norm("LayerNorm", d_model) if visual else {}),
                parts={"input": page, **({"image": patches} if visual else {}), **each_layer(layers, layer)})
