"""Rotary positions: LLaMA and Falcon in half-split pairs, GPT-J in interleaved ones (transformers 5.24.0).

    family    pairs                of how many channels    base                     k and v heads
    llama     c and c + d/2        all                     rope_theta               grouped
    falcon    c and c + d/2        all                     rope_theta               one, grouped, or as many; fused with q
    gptj      2c and 2c + 1        rotary_dim              10000                    as many

A base, a width or a pairing of another checkpoint has the same shapes, so the configuration states them and a stored table of
frequencies has to agree. Rules that change the frequencies with the length (rope_type) have no part here and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from positionlib.checkpoints.conversion import Conversion, Plan
from positionlib.checkpoints.families.common import TRANSFORMERS, Assignment, affine, each_layer, stated
from positionlib.checkpoints.state import (
    Generated, causal_mask, counts, filled, hidden_score, inverse_frequencies, layered, linears, mapping, norm, only, switch, widths,
)
from positionlib.contract import is_finite_number
from positionlib.errors import require, require_count, whole_number
from positionlib.layers import SelfAttention
from positionlib.mechanisms import Rotary
from positionlib.rules import frequency_ladder


def rope_base(config: Mapping) -> float:
    """θ of a plain rotation, from rope_parameters (transformers 5) or rope_theta (4); any other rule is refused."""
    rules = {name: mapping(f"config.{name}", config[name]) for name in ("rope_parameters", "rope_scaling") if config.get(name) is not None}
    for name, rule in rules.items():
        plain = rule.get("rope_type", rule.get("type", "default")) == "default" and set(rule) <= {"rope_type", "type", "rope_theta"}
        require(plain, f"config.{name}", dict(rule), "rope_type 'default' and its base", "Interpolated, scaled and partial rotations are other methods: "
                "they are not converted.")
    only(config, partial_rotary_factor=1.0)
    bases = [rule["rope_theta"] for rule in (*rules.values(), config) if rule.get("rope_theta") is not None]
    base = bases[0] if len(bases) == 1 else bases or None
    numbers = bool(bases) and all(is_finite_number(b) and b > 1 for b in bases)
    require(numbers, "config.rope_theta", base, "a number above 1, in rope_parameters or beside it", "Take it from config.json.")
    # Which of two the source believes depends on its release.
    require(len(set(bases)) == 1, "config.rope_theta", base, "one base wherever it is stated", "Keep the one that the weights were trained with.")
    return float(bases[0])


def llama(config: Mapping, assignment: Assignment) -> Plan:
    """LLaMA, with grouped key heads where the configuration has them."""
    d_model, heads, layers, inner, words, positions = counts(config, "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size",
                                                             "vocab_size", "max_position_embeddings")
    kv_heads = heads if config.get("num_key_value_heads") is None else counts(config, "num_key_value_heads")[0]
    d_head = d_model // heads if config.get("head_dim") is None else counts(config, "head_dim")[0]
    require(heads % kv_heads == 0, "config.num_key_value_heads", kv_heads, f"a divisor of {heads} heads", "Take it from config.json.")
    require(d_head % 2 == 0, "config.head_dim", d_head, "an even number", "A rotation turns pairs of channels.")
    base, bias, mlp_bias = rope_base(config), switch(config, "attention_bias", False), switch(config, "mlp_bias", False)
    stored = ("rotary_emb.inv_freq", *(f"layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(layers)))
    contract = stated("llama", f"{TRANSFORMERS}, models/llama/modeling_llama.py", heads, assignment, relative_sign="key_minus_query", max_positions=positions,
                      pairing="half_split", formula=f"rotation of all {d_head} channels, base {base:g}",
                      generated_buffers=("rotary_emb.inv_freq", "layers.*.self_attn.rotary_emb.inv_freq"))
    attention = linears(d_model, "q_proj", inner=heads * d_head, bias=bias) | linears(d_model, "k_proj", "v_proj", inner=kv_heads * d_head, bias=bias)
    attention |= linears(heads * d_head, "o_proj", inner=d_model, bias=bias)
    rest = linears(d_model, "mlp.gate_proj", "mlp.up_proj", inner=inner, bias=mlp_bias) | linears(inner, "mlp.down_proj", inner=d_model, bias=mlp_bias)
    rest |= {"input_layernorm.weight": (d_model,), "post_attention_layernorm.weight": (d_model,)}

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        module = SelfAttention(d_model, heads, Rotary(d_head, pairing="half_split", base=base), d_head=d_head, kv_heads=kv_heads, bias=bias)
        state = {name: tensor for name, tensor in conversion.inside(f"layers.{n}.self_attn.").items() if name in attention}
        return filled(module, state, {f"{name}_proj": name for name in "qkvo"})

    return Plan(contract=contract, prefix="model.", heads=("lm_head.weight", "score.weight", *affine("qa_outputs")),
                generated={name: inverse_frequencies(d_head, base) for name in stored}, read=layered("layers.{}.self_attn.", layers, attention),
                elsewhere=layered("layers.{}.", layers, rest) | {"embed_tokens.weight": (words, d_model), "norm.weight": (d_model,)},
                parts=each_layer(layers, layer))


def gptj(config: Mapping, assignment: Assignment) -> Plan:
    """GPT-J: the first rotary_dim channels of a head turn, in pairs that stand side by side."""
    d_model, heads = widths(config, "n_head", "n_embd")
    layers, words, positions, turned = counts(config, "n_layer", "vocab_size", "n_positions", "rotary_dim")
    inner = 4 * d_model if config.get("n_inner") is None else counts(config, "n_inner")[0]
    require(turned % 2 == 0 and turned <= d_model // heads, "config.rotary_dim", turned, f"an even number of the {d_model // heads} channels",
            "A rotation turns pairs of channels.")
    contract = stated("gptj", f"{TRANSFORMERS}, models/gptj/modeling_gptj.py", heads, assignment, relative_sign="key_minus_query", max_positions=positions,
                      pairing="interleaved", formula=f"rotation of the first {turned} of {d_model // heads} channels, base 10000",
                      generated_buffers=("h.*.attn.bias", "h.*.attn.masked_bias", "h.*.attn.embed_positions"))
    stored = {"bias": causal_mask(positions), "masked_bias": hidden_score(-1e9), "embed_positions": _sines(positions, turned)}
    attention = linears(d_model, "q_proj", "k_proj", "v_proj", "out_proj", bias=False)
    rest = norm("ln_1", d_model) | linears(d_model, "mlp.fc_in", inner=inner) | linears(inner, "mlp.fc_out", inner=d_model)

    def layer(conversion: Conversion, n: int) -> SelfAttention:
        module = SelfAttention(d_model, heads, Rotary(d_model // heads, pairing="interleaved", rotary_dim=turned), bias=False)
        state = {name: tensor for name, tensor in conversion.inside(f"h.{n}.attn.").items() if name in attention}
        return filled(module, state, {f"{name}_proj": name for name in "qkv"} | {"out_proj": "o"})

    return Plan(contract=contract, prefix="transformer.", heads=affine("lm_head", "qa_outputs") + ("score.weight",),
                generated={f"h.{n}.attn.{name}": buffer for n in range(layers) for name, buffer in stored.items()},
                read=layered("h.{}.attn.", layers, attention),
                elsewhere=layered("h.{}.", layers, rest) | norm("ln_f", d_model) | {"wte.weight": (words, d_model)},
                parts=each_layer(layers, layer))


def _sines(positions: int, width: int) -> Generated:
    def values() -> torch.Tensor:
        phase = torch.arange(positions, dtype=torch.float64)[:, None] * frequency_ladder(width // 2, width)
        return torch.cat((phase.sin(), phase.cos()), 1)

    return Generated(f"sines and cosines of {positions} positions, base 10000", positions * width, values, "waves")


def falcon(config: Mapping, assignment: Assignment) -> Plan:
    """Falcon with rotary positions: 7B has one key head, 40B grouped ones."""
    require(not switch(config, "alibi"), "config.alibi", True, "False", "Convert it as falcon-alibi.")
    (positions,), base = counts(config, "max_position_embeddings"), rope_base(config)
    (d_model, heads), fused = widths(config, "num_attention_heads"), FusedFalcon(config)
    require(d_model // heads % 2 == 0, "config.hidden_size", d_model, f"an even width for each of {heads} heads", "A rotation turns pairs of channels.")
    contract = stated("falcon", f"{TRANSFORMERS}, models/falcon/modeling_falcon.py", heads, assignment, relative_sign="key_minus_query",
                      max_positions=positions, pairing="half_split", formula=f"rotation of all {d_model // heads} channels, base {base:g}",
                      generated_buffers=("rotary_emb.inv_freq", "h.*.self_attention.rotary_emb.inv_freq"))
    (layers,) = counts(config, "num_hidden_layers")
    names = ("rotary_emb.inv_freq", *(f"h.{n}.self_attention.rotary_emb.inv_freq" for n in range(layers)))
    return fused.plan(contract, {name: inverse_frequencies(d_model // heads, base) for name in names},
                      lambda: Rotary(d_model // heads, pairing="half_split", base=base))


class FusedFalcon:
    """Falcon's tensors: q, k and v in one matrix, in one of three orders, and the norms that its block has."""

    def __init__(self, config: Mapping) -> None:
        self.d_model, self.heads = widths(config, "num_attention_heads")
        self.layers, self.words = counts(config, "num_hidden_layers", "vocab_size")
        self.grouped, self.bias, parallel = switch(config, "new_decoder_architecture"), switch(config, "bias"), switch(config, "parallel_attn")
        one, inner, norms = switch(config, "multi_query"), config.get("ffn_hidden_size"), config.get("num_ln_in_parallel_attn")
        self.kv_heads = counts(config, "num_kv_heads")[0] if self.grouped else 1 if one else self.heads
        require(self.heads % self.kv_heads == 0, "config.num_kv_heads", self.kv_heads, f"a divisor of {self.heads} heads", "Take it from config.json.")
        require(norms is None or whole_number(norms) in (1, 2), "config.num_ln_in_parallel_attn", norms, "1, 2 or None", "Take it from config.json.")
        self.inner = 4 * self.d_model if inner is None else require_count("config.ffn_hidden_size", inner)
        two = norms == 2 or norms is None and self.grouped
        self.norms = ("ln_attn", "ln_mlp") if parallel and two else ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm")

    def plan(self, contract, generated, mechanism) -> Plan:
        """The plan of these tensors around a mechanism."""
        d_model, fused = self.d_model, (self.heads + 2 * self.kv_heads) * (self.d_model // self.heads)
        attention = linears(d_model, "query_key_value", inner=fused, bias=self.bias) | linears(d_model, "dense", bias=self.bias)
        rest = linears(d_model, "mlp.dense_h_to_4h", inner=self.inner, bias=self.bias)
        rest |= linears(self.inner, "mlp.dense_4h_to_h", inner=d_model, bias=self.bias)
        for name in self.norms:
            rest |= norm(name, d_model)
        return Plan(contract=contract, prefix="transformer.", heads=("lm_head.weight", "score.weight", *affine("classifier", "qa_outputs")),
                    generated=generated,
                    read=layered("h.{}.self_attention.", self.layers, attention),
                    elsewhere=layered("h.{}.", self.layers, rest) | norm("ln_f", d_model) | {"word_embeddings.weight": (self.words, d_model)},
                    parts=each_layer(self.layers, lambda c, n: self._attention(c.inside(f"h.{n}.self_attention."), mechanism())))

    def _attention(self, state, mechanism) -> SelfAttention:
        own = {}
        for kind in ("weight", "bias")[: 1 + self.bias]:
            # Of each group: its query heads, then its key head, then its value head. Without groups there is one of all heads, or one a head.
            rows = state[f"query_key_value.{kind}"].unflatten(0, (self.kv_heads, self.heads // self.kv_heads + 2, -1))
            own |= {f"q.{kind}": rows[:, :-2].flatten(0, 2), f"k.{kind}": rows[:, -2].flatten(0, 1), f"v.{kind}": rows[:, -1].flatten(0, 1),
                    f"o.{kind}": state[f"dense.{kind}"]}
        return filled(SelfAttention(self.d_model, self.heads, mechanism, kv_heads=self.kv_heads, bias=self.bias), own, {})
