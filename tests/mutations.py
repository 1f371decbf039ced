"""Change one number or sign of the library and see that a test notices. Run: python -m tests.mutations [-k WORD]

Each mutation replaces one piece of source text in a copy of the package and runs the tests named beside it. A mutation that
no test catches, or whose text is no longer there, fails the run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    tests: str


M, T = "positionlib/mechanisms", "tests/mechanisms"
R, U = "positionlib/runtime", "tests/runtime"
MUTATIONS = [
    Mutation("bucket edge one later", "positionlib/rules.py", "right=True)", "right=False)", "tests/test_rules.py"),
    Mutation("exact range one shorter", "positionlib/rules.py", "exact = per_direction // 2", "exact = max(1, per_direction // 2 - 1)", "tests/test_rules.py"),
    Mutation("future takes the lower half", "positionlib/rules.py", "(relative_position > 0) * self.per_direction", "(relative_position < 0) * self.per_direction", "tests/test_rules.py"),
    Mutation("causal buckets look ahead", "positionlib/rules.py", "(-relative_position).clamp_min(0)", "relative_position.clamp_min(0)", "tests/test_rules.py"),
    Mutation("t5x epsilon dropped", "positionlib/rules.py", "np.log(ratio + np.finfo(np.float32).eps)", "np.log(ratio)", "tests/test_rules.py"),
    Mutation("slopes from the wrong exponent", "positionlib/rules.py", "-bias_max * (h + 1) / heads", "-bias_max * h / heads", "tests/test_rules.py"),
    Mutation("extra slopes take the odd entries", "positionlib/rules.py", "[0::2][: heads - lower]", "[1::2][: heads - lower]", "tests/test_rules.py"),
    Mutation("ladder exponent halved", "positionlib/rules.py", "(2.0 * i / d_model)", "(1.0 * i / d_model)", f"{T}/test_sinusoidal.py"),
    Mutation("offset sign flipped in the geometry", "positionlib/geometry.py", "return offset if sign", "return -offset if sign", "tests/test_geometry.py"),
    Mutation("strict causality", "positionlib/geometry.py", "k <= q if", "k < q if", "tests/test_geometry.py"),
    Mutation("padding ignored", "positionlib/geometry.py", "visible & self.key_active[..., None, :]", "visible", "tests/test_geometry.py"),
    Mutation("segments ignored", "positionlib/geometry.py", "(self.query_segments[..., :, None] == self.key_segments[..., None, :])", "(self.query_segments[..., :, None] >= 0)", "tests/test_geometry.py"),
    Mutation("decode starts at zero", "positionlib/geometry.py", "cls(keys[committed_length:], keys", "cls(keys[:new_tokens], keys", "tests/test_geometry.py"),
    Mutation("frames not compared", "positionlib/geometry.py", "if self.query_frame != self.key_frame:\n            raise FrameMismatchError(\"coordinate_frame\"", "if False:\n            raise FrameMismatchError(\"coordinate_frame\"", "tests/test_geometry.py"),
    Mutation("bias inside the scale", "positionlib/attention.py", "content * scale + bias", "(content + bias) * scale", "tests/test_attention.py"),
    Mutation("empty row divides by zero", "positionlib/attention.py", "total.masked_fill(total == 0, 1.0)", "total", "tests/test_attention.py"),
    Mutation("empty row subtracts minus infinity", "positionlib/attention.py", "peak.masked_fill(peak == -math.inf, 0.0)", "peak", "tests/test_attention.py"),
    Mutation("scores in the input dtype", "positionlib/attention.py", "compute = torch.promote_types(q.dtype, torch.float32)", "compute = q.dtype", "tests/test_attention.py"),
    Mutation("value relation dropped", "positionlib/attention.py", "out = out + mass @ term.value_table.to(compute)", "pass", "tests/test_attention.py"),
    Mutation("bias transposed", "positionlib/terms.py", "_batched(bias.movedim(-1, -3))", "_batched(bias.movedim(-1, -3).mT)", "tests/test_attention.py"),
    Mutation("distance counts one too many", "positionlib/terms.py", "distance.clamp_min(0))", "(distance + 1).clamp_min(0))", f"{T}/test_alibi.py"),
    Mutation("distance rounded before the product", "positionlib/terms.py", "cast = self.rounded or torch.promote_types(dtype, torch.float32)", "cast = self.rounded or dtype", f"{T}/test_alibi.py"),
    Mutation("second addition allowed", "positionlib/terms.py", "again or self.mark not in marks", "True", "tests/test_terms.py"),
    Mutation("rotation turns backwards", "positionlib/terms.py", "(a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)", "(a * cos + b * sin, b * cos - a * sin), -1).flatten(-2)", "tests/test_attention.py"),
    Mutation("float positions accepted", "positionlib/rules.py", "not (kind.is_floating_point or kind.is_complex or kind == torch.bool)", "True", f"{T}/test_sinusoidal.py"),
    Mutation("frequencies follow the module's dtype", "positionlib/frequencies.py", "self.inverse_frequency = self._exact.to(self.inverse_frequency.device)", "pass", f"{T}/test_sinusoidal.py"),
    Mutation("bfloat16 construction accepted", f"{M}/sinusoidal.py", "not in (torch.float32, torch.float64)", "not in (torch.float32, torch.float64, torch.bfloat16)", f"{T}/test_sinusoidal.py"),
    Mutation("layouts swapped", f"{M}/sinusoidal.py", 'concatenated_from_interleaved if source == "interleaved"', 'concatenated_from_interleaved if source == "concatenated"', f"{T}/test_sinusoidal.py"),
    Mutation("sine of a block transposed", f"{M}/sinusoidal_algebra.py", "torch.stack((-b, a), -1)), -2)", "torch.stack((b, -a), -1)), -2)", f"{T}/test_sinusoidal_algebra.py"),
    Mutation("consistent sign error of a shift", f"{M}/sinusoidal_algebra.py", "phase = k * inverse", "phase = -k * inverse", f"{T}/test_sinusoidal_algebra.py"),
    Mutation("sweep looks at neighbours only", f"{M}/sinusoidal_precision.py", "for index in distance.argsort():", "for index in [torch.tensor(0)]:", f"{T}/test_sinusoidal_precision.py"),
    Mutation("sweep trusts the unrounded order", f"{M}/sinusoidal_precision.py", "float((stored - exact).norm(dim=1).max()) + 1e-12", "0.0", f"{T}/test_sinusoidal_precision.py"),
    Mutation("table transposed on load", f"{M}/t5.py", 'if self.table_layout == "buckets_heads" else self.weight.T', 'if self.table_layout == "heads_buckets" else self.weight.T', f"{T}/test_t5.py"),
    Mutation("encoder buckets in a decoder", f"{M}/t5.py", "require(geometry.causal != self.rule.bidirectional", "require(True", f"{T}/test_t5.py"),
    Mutation("slopes of the shard's own head count", f"{M}/alibi.py", "alibi_slopes(heads) if slopes is None", "alibi_slopes(len(head_ids) if head_ids else heads) if slopes is None", f"{T}/test_alibi.py"),
    Mutation("row offset lost", f"{M}/learned.py", "return positions + self.row_offset", "return positions", f"{T}/test_learned.py"),
    Mutation("range check off by one", f"{M}/learned.py", "if not 0 <= value < self.capacity", "if not 0 <= value <= self.capacity", f"{T}/test_learned.py"),
    Mutation("reduction keeps the last gradient only", f"{M}/learned.py", ".index_add(0, row_ids.reshape(-1), wide)", ".index_copy(0, row_ids.reshape(-1), wide)", f"{T}/test_learned.py"),
    Mutation("learned slopes are their logarithms", f"{M}/alibi.py", "self.log_slopes.exp()", "self.log_slopes", f"{T}/test_alibi.py"),
    Mutation("NoPE without its mask", f"{M}/nope.py", "require(geometry.causal", "require(True", f"{T}/test_nope.py"),
    Mutation("autocast reaches the reference", "positionlib/attention.py", "enabled=False", "enabled=True", "tests/test_attention.py"),
    Mutation("one sequence's NaN poisons the pack", "positionlib/attention.py", "vc.masked_fill(bad_v, 0.0)", "vc", "tests/test_attention.py"),
    Mutation("a NaN query spoils the pack", "positionlib/attention.py", "qc.masked_fill(bad_q, 0.0)", "qc", "tests/test_attention.py"),
    Mutation("one position spread over all rows", "positionlib/terms.py", "state[-2:] == self.rows.shape[-2:]", "True", "tests/test_terms.py"),
    Mutation("explicit scale ignored", "positionlib/attention.py", "if scale is None:", "if True:", "tests/test_attention.py"),
    Mutation("odd policy forgotten", f"{M}/sinusoidal.py", 'd_model % 2 and odd_width == "zero_pad"', "False", f"{T}/test_sinusoidal.py"),
    Mutation("visibility left out of the cache identity", "positionlib/identity.py", "self.visibility)\n", "('', '', '', ''))\n", "tests/test_identity.py"),
    Mutation("mean adds in half precision", "positionlib/padding.py", "states.to(torch.promote_types(states.dtype, torch.float32))", "states", "tests/test_padding.py"),
    Mutation("a slice loses the allowed pairs", "positionlib/geometry.py", "None if self.allowed is None else self.allowed[..., rows, :]", "None", "tests/test_geometry.py"),
    Mutation("a start is lost", "positionlib/geometry.py", "torch.arange(start, start + require_count(\"length\", length, 0), device=device)", "torch.arange(0, require_count(\"length\", length, 0), device=device)", "tests/test_geometry.py"),
    Mutation('shaw: sign ignored', f"{M}/shaw.py", 'rule=self.rule, sign=self.sign)', 'rule=self.rule, sign="key_minus_query")', f"{T}/test_shaw.py"),
    Mutation('shaw: value side dropped', f"{M}/shaw.py", 'key_table=self.key_table, value_table=self.value_table, rule=self.rule, sign=', 'key_table=self.key_table, value_table=None, rule=self.rule, sign=', f"{T}/test_shaw.py"),
    Mutation('shaw: batched rows of the wrong head', f"{M}/shaw.py", 'table[:, classes].transpose(0, 1)', 'table[:, classes].flip(0).transpose(0, 1)', f"{T}/test_shaw.py"),
    Mutation('shaw: edge types of the reverse edge', f"{M}/shaw.py", 'return self.edge_types\n', 'return self.edge_types.mT\n', f"{T}/test_shaw.py"),
    Mutation('shaw: negative edge types wrap', f"{M}/shaw.py", 'outside = (ids < 0) | (ids >= rows)', 'outside = ids >= rows', f"{T}/test_shaw.py"),
    Mutation('shaw: ledger forgets the heads', f"{M}/shaw.py", 'h if per_head else 1\n', '1\n', f"{T}/test_shaw.py"),
    Mutation('shaw: ledger counts keys for classes', f"{M}/shaw.py", 'compact_keys=b * h * q * classes', 'compact_keys=b * h * q * k', f"{T}/test_shaw.py"),
    Mutation('shaw bert: sign of the paper', f"{M}/shaw_variants.py", '(query_positions[..., :, None] - key_positions[..., None, :])', '(key_positions[..., None, :] - query_positions[..., :, None])', f"{T}/test_shaw.py"),
    Mutation('shaw bert: key term dropped', f"{M}/shaw_variants.py", 'from_query + from_key', 'from_query', f"{T}/test_shaw.py"),
    Mutation('shaw bert: key term not transposed back', f"{M}/shaw_variants.py", 'compact_key_scores(k, table, classes.mT).mT', 'compact_key_scores(k, table, classes.mT.flip(-1)).mT', f"{T}/test_shaw.py"),
    Mutation('shaw bert: row off by one', f"{M}/shaw_variants.py", 'offset + self.max_positions - 1, self', 'offset + self.max_positions - 2, self', f"{T}/test_shaw.py"),
    Mutation('shaw music: clips like Shaw', f"{M}/shaw_variants.py", 'return row.masked_fill((row < 0) | (row >= self.rows), self.rows)', 'return row.clamp(0, self.rows - 1)', f"{T}/test_shaw.py"),
    Mutation('shaw music: skew drops the last row', f"{M}/shaw_variants.py", 'length + 1, length)[..., 1:, :]', 'length + 1, length)[..., :-1, :]', f"{T}/test_shaw.py"),
    Mutation('shaw music: bidirectional skew off by one', f"{M}/shaw_variants.py", '[..., :length, length - 1 :]', '[..., 1:, length - 1 :]', f"{T}/test_shaw.py"),
    Mutation('xl: shift drops the last row', f"{M}/transformer_xl.py", 'padded[..., 1:, :]', 'padded[..., :-1, :]', f"{T}/test_transformer_xl.py"),
    Mutation('xl: memory length left out of the range', f"{M}/transformer_xl.py", '.triu(keys - queries + 1)', '.triu(1)', f"{T}/test_transformer_xl.py"),
    Mutation('xl: u in place of v', f"{M}/transformer_xl.py", '(q + self.position_bias[:, None].to(q.dtype))', '(q + self.content_bias[:, None].to(q.dtype))', f"{T}/test_transformer_xl.py"),
    Mutation('xl: sines and cosines interleaved', f"{M}/transformer_xl.py", 'torch.cat((phase.sin(), phase.cos()), -1)', 'torch.stack((phase.sin(), phase.cos()), -1).flatten(-2)', f"{T}/test_transformer_xl.py"),
    Mutation('xl: distances not clamped', f"{M}/transformer_xl.py", 'distances.clamp(-clamp_len, clamp_len)', 'distances', f"{T}/test_transformer_xl.py"),
    Mutation('xl: signed distances folded', f"{M}/transformer_xl.py", 'if not self.bidirectional:', 'if True:', f"{T}/test_transformer_xl.py"),
    Mutation('xl: position terms outside the scale', f"{M}/transformer_xl.py", 'return (ac + bd) * scale', 'return ac * scale + bd', f"{T}/test_transformer_xl.py"),
    Mutation('xl: memory keeps its graph', f"{M}/transformer_xl.py", 'x.detach().narrow', 'x.narrow', f"{T}/test_transformer_xl.py"),
    Mutation('xl: memory of layer 0 for all', f"{M}/transformer_xl.py", 'self.states[layer], hidden), self._time)', 'self.states[0], hidden), self._time)', f"{T}/test_transformer_xl.py"),
    Mutation('xl: memory behind the segment', f"{M}/transformer_xl.py", 'torch.cat((self.states[layer], hidden)', 'torch.cat((hidden, self.states[layer])', f"{T}/test_transformer_xl.py"),
    Mutation('xl: released cut for all', f"{M}/transformer_xl.py", 'if self.ext_rule == "documented" else (new, old)', 'if self.ext_rule == "unknown" else (new, old)', f"{T}/test_transformer_xl.py"),
    Mutation('xl: oldest rows kept', f"{M}/transformer_xl.py", 'start = max(0, end - self.mem_len)', 'start, end = 0, min(end, self.mem_len)', f"{T}/test_transformer_xl.py"),
    Mutation('xl: window one key longer', f"{M}/transformer_xl.py", '< self.mem_len\n', '<= self.mem_len\n', f"{T}/test_transformer_xl.py"),
    Mutation("maps: BLOOM's query and key swapped", "positionlib/checkpoints/maps.py", 'enumerate("qkv")', 'enumerate("kqv")', "tests/checkpoints"),
    Mutation("maps: BLOOM's rows read in three blocks", "positionlib/checkpoints/maps.py", '.unflatten(0, (heads, 3, -1))', '.unflatten(0, (3, heads, -1)).transpose(0, 1)', "tests/checkpoints"),
    Mutation('maps: a bias dropped', "positionlib/checkpoints/maps.py", '{kind}" if dot else names.get(name, name)] = tensor', '{kind}" if dot else names.get(name, name)] = tensor * (kind != "bias")', "tests/checkpoints"),
    Mutation("maps: the Conformer's waves not moved", "positionlib/checkpoints/maps.py", 'torch.cat((weight[:, 0::2], weight[:, 1::2]), 1)', 'weight', "tests/checkpoints"),
    Mutation("maps: the Conformer's u and v swapped", "positionlib/checkpoints/maps.py", '"pos_bias_u": "mechanism.content_bias", "pos_bias_v": "mechanism.position_bias"', '"pos_bias_v": "mechanism.content_bias", "pos_bias_u": "mechanism.position_bias"', "tests/checkpoints"),
    Mutation("maps: DeBERTa's position projections swapped", "positionlib/checkpoints/maps.py", '"self.pos_key_proj": "mechanism.pos_key_proj", "self.pos_query_proj": "mechanism.pos_query_proj"', '"self.pos_query_proj": "mechanism.pos_key_proj", "self.pos_key_proj": "mechanism.pos_query_proj"', "tests/checkpoints"),
    Mutation("maps: DeBERTa's table without its norm", "positionlib/checkpoints/maps.py", '    if normed:\n', '    if False:\n', "tests/checkpoints"),
    Mutation("maps: DeBERTa under the paper's index", "positionlib/checkpoints/maps.py", 'third_index="released"', 'third_index="paper"', "tests/checkpoints"),
    Mutation("maps: BERT's key and value swapped", "positionlib/checkpoints/maps.py", '"self.key": "k", "self.value": "v", "self.dist', '"self.key": "v", "self.value": "k", "self.dist', "tests/checkpoints"),
    Mutation("maps: BERT's variant forgotten", "positionlib/checkpoints/maps.py", 'variant=kind', 'variant="relative_key"', "tests/checkpoints"),
    Mutation('maps: unexpected tensors ignored', "positionlib/checkpoints/maps.py", 'for name in state if name not in shapes]', 'for name in ()]', "tests/checkpoints"),
    Mutation('maps: shapes not compared', "positionlib/checkpoints/maps.py", 'if name in state and tuple(state[name].shape) != tuple(shape)]', 'if False]', "tests/checkpoints"),
    Mutation('maps: a missing field guessed', "positionlib/checkpoints/maps.py", 'require(not missing, "config"', 'require(True, "config"', "tests/checkpoints"),
    Mutation('layers: residual dropped', "positionlib/layers.py", 'self.norm(x + y)', 'self.norm(y)', "tests/test_layers.py"),
    Mutation('layers: shared projections exchanged', "positionlib/layers.py", 'query_proj=self.q, key_proj=self.k', 'query_proj=self.k, key_proj=self.q', "tests/test_layers.py"),
    Mutation('layers: heads cut the other way', "positionlib/layers.py", '.unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection', '.unflatten(-1, (-1, self.heads)).movedim(-1, 1) for projection', "tests/test_layers.py"),
    Mutation('layers: every token of type 0', "positionlib/layers.py", '_rows("token_types", self.types, types)', '_rows("token_types", self.types, 0 * types)', "tests/test_layers.py"),
    Mutation('layers: a word past the table', "positionlib/layers.py", 'if not 0 <= value < table.num_embeddings', 'if not 0 <= value <= table.num_embeddings', "tests/test_layers.py"),
    Mutation('bench: speed-up upside down', "positionlib/bench/verdict.py", 'min(seconds["peer"]) / min(seconds["ours"])', 'min(seconds["ours"]) / min(seconds["peer"])', "tests/bench"),
    Mutation('bench: one block settles', "positionlib/bench/verdict.py", '>= 2 * BLOCK and', '>= BLOCK and', "tests/bench"),
    Mutation('bench: memory of the training pass', "positionlib/bench/verdict.py", 'measured["peak_bytes"]["forward"]', 'measured["peak_bytes"]["forward + backward"]', "tests/bench"),
    Mutation('bench: a disagreement is timed all the same', "positionlib/bench/worker.py", 'if agreed(found["agreement"]).holds:', 'if True:', "tests/bench"),
    Mutation('bench: gradients pile up', "positionlib/bench/worker.py", 'parameter.grad = None', 'pass', "tests/bench"),
    Mutation('bench: peak left from before the call', "positionlib/bench/worker.py", 'Path("/proc/self/clear_refs").write_text("5")', 'torch.ones(50_000_000)', "tests/bench"),
    Mutation("polarity ignored", "positionlib/padding.py", 'mask if polarity == "true_is_visible" else ~mask', "mask", "tests/test_padding.py"),
    Mutation("deberta third index swapped", f"{M}/deberta.py", 'if self.third_index == "released" else', 'if self.third_index == "paper" else', f"{T}/test_deberta.py"),
    Mutation("deberta offset sign flipped", f"{M}/deberta.py", 'query_positions[..., :, None] - key_positions[..., None, :]', 'key_positions[..., None, :] - query_positions[..., :, None]', f"{T}/test_deberta.py"),
    Mutation("deberta scale forgets the content", f"{M}/deberta.py", '(1 + len(position_terms))', 'max(1, len(position_terms))', f"{T}/test_deberta.py"),
    Mutation("deberta row one too high", f"{M}/deberta.py", '* distance + self.span)', '* distance + self.span + 1)', f"{T}/test_deberta.py"),
    Mutation("deberta third term not turned back", f"{M}/deberta.py", 'index["p2c"].mT).mT', 'index["p2c"]).mT', f"{T}/test_deberta.py"),
    Mutation("deberta clamp as in transformers", f"{M}/deberta.py", 'distance if rule.edge == "transformers" else', 'distance if rule.edge != "exact" else', f"{T}/test_deberta.py"),
    Mutation("deberta official divisor rounded first", f"{M}/deberta.py", 'last / mid if rule.edge == "official" else', 'float(np.float32(last / mid)) if rule.edge == "official" else', f"{T}/test_deberta.py"),
    Mutation("deberta shared projections exchanged", f"{M}/deberta.py", '(key_proj, query_proj) if shared', '(query_proj, key_proj) if shared', f"{T}/test_deberta.py"),
    Mutation("deberta p2p accepted", f"{M}/deberta.py", 'require("p2p" not in terms', 'require(True', f"{T}/test_deberta.py"),
    Mutation("deberta decoder rows enter the keys", f"{M}/deberta.py", 'if stage == "input" else (positioned, x)', 'if stage == "input" else (positioned, positioned)', f"{T}/test_deberta.py"),
    Mutation("tupe scale of one product", f"{M}/tupe.py", 'math.sqrt(2 * (', 'math.sqrt(1 * (', f"{T}/test_tupe.py"),
    Mutation("tupe row before column", f"{M}/tupe.py", 'columns = torch.where(key_is_cls[..., None, :], other_to_cls, scores)\n    return torch.where(query_is_cls[..., :, None], cls_to_other, columns)', 'rows = torch.where(query_is_cls[..., :, None], cls_to_other, scores)\n    return torch.where(key_is_cls[..., None, :], other_to_cls, rows)', f"{T}/test_tupe.py"),
    Mutation("tupe position reads its own row", f"{M}/tupe.py", 'self.row_scores(queries + 1, keys + 1)', 'self.row_scores(queries, keys)', f"{T}/test_tupe.py"),
    Mutation("tupe relative bias scaled", f"{M}/tupe.py", 'bias + self.relative_weight[self.buckets(queries, keys)].movedim(-1, -3)', 'bias + self.scale * self.relative_weight[self.buckets(queries, keys)].movedim(-1, -3)', f"{T}/test_tupe.py"),
    Mutation("tupe cls numbers exchanged", f"{M}/tupe.py", 'to_other, to_cls = (', 'to_cls, to_other = (', f"{T}/test_tupe.py"),
    Mutation("tupe extra bucket unused", f"{M}/tupe.py", '== cls_position, rule.num_buckets)', '== cls_position, rule.num_buckets // 2)', f"{T}/test_tupe.py"),
    Mutation("tupe term reused at other positions", f"{M}/tupe.py", 'require(same, name, asked', 'require(True, name, asked', f"{T}/test_tupe.py"),
    Mutation("graph rows move without their columns", f"{M}/graph.py", '"path_edges": "N N hops"}', '"path_edges": "N K hops"}', f"{T}/test_graph.py"),
    Mutation("graph disconnected shares a distance", f"{M}/graph.py", 'masked_fill(distance == DISCONNECTED, len(self.weight) - 1)', 'masked_fill(distance == DISCONNECTED, len(self.weight) - 2)', f"{T}/test_graph.py"),
    Mutation("graph degrees of one direction", f"{M}/graph.py", 'embedding(graph.in_degree, self.in_weight)', 'embedding(graph.out_degree, self.in_weight)', f"{T}/test_graph.py"),
    Mutation("graph path summed", f"{M}/graph.py", 'total / graph.distance.clamp(1, self.max_hops)', 'total', f"{T}/test_graph.py"),
    Mutation("graph mean counts dropped hops", f"{M}/graph.py", 'clamp(1, self.max_hops)', 'clamp_min(1)', f"{T}/test_graph.py"),
    Mutation("graph in-degree counts leaving edges", f"{M}/graph.py", 'sum(b == n for _, b in number)', 'sum(a == n for a, _ in number)', f"{T}/test_graph.py"),
    Mutation("graph token without a column", f"{M}/graph.py", 'framed[:, 1:, :1]', '0 * framed[:, 1:, :1]', f"{T}/test_graph.py"),
    Mutation("graph pair transposed", f"{M}/graph.py", '[query_positions[..., :, None], key_positions[..., None, :]]', '[key_positions[..., None, :], query_positions[..., :, None]]', f"{T}/test_graph.py"),
    Mutation("graph keeps another shortest path", f"{M}/graph.py", 'next(k for k in nodes if', 'next(k for k in reversed(nodes) if', f"{T}/test_graph.py"),
    Mutation("grid traversals exchanged", f"{M}/grid.py", 'self.axes if self.traversal == "row_major" else', 'self.axes if self.traversal == "column_major" else', f"{T}/test_grid.py"),
    Mutation("grid leading token counted as a cell", f"{M}/grid.py", 'cell = positions - len(self.leading)', 'cell = positions', f"{T}/test_grid.py"),
    Mutation("grid token number forgets the leading tokens", f"{M}/grid.py", 'return len(self.leading) + sum(', 'return sum(', f"{T}/test_grid.py"),
    Mutation("grid token past the end wraps", f"{M}/grid.py", 'check_range("position", positions, self.tokens, self)', 'check_range("position", positions % self.tokens, self.tokens, self)', f"{T}/test_grid.py"),
    Mutation("grid tables multiplied", f"{M}/grid.py", 'return sum(part.to(wide) for part in parts)', 'return math.prod(part.to(wide) for part in parts)', f"{T}/test_grid.py"),
    Mutation("grid channels in another order", f"{M}/grid.py", 'else torch.cat(parts, -1)', 'else torch.cat(parts[::-1], -1)', f"{T}/test_grid.py"),
    Mutation("grid sum rounded at every step", f"{M}/grid.py", 'torch.promote_types(parts[0].dtype, torch.float32)', 'parts[0].dtype', f"{T}/test_grid.py"),
    Mutation("grid of equally many tokens accepted", f"{M}/grid.py", 'if grid.sizes != home.sizes:', 'if grid.tokens != home.tokens:', f"{T}/test_grid.py"),
    Mutation("grid cls reads a cell", f"{M}/grid.py", 'torch.where((positions < len(self.leading))[..., None], own, rows)', 'rows', f"{T}/test_grid.py"),
    Mutation("grid defect of lines", f"{M}/grid.py", 'cells.diff(dim=-3).diff(dim=-2)', 'cells.diff(dim=-3).diff(dim=-3)', f"{T}/test_grid.py"),
    Mutation("grid resize of a transposed image", f"{M}/grid_resize.py", 'indexing="ij"', 'indexing="xy"', f"{T}/test_grid_resize.py"),
    Mutation("grid resize loses the corners", f"{M}/grid_resize.py", '"align_corners": self.align_corners', '"align_corners": False', f"{T}/test_grid_resize.py"),
    Mutation("grid resize without its antialias", f"{M}/grid_resize.py", '"antialias": self.antialias', '"antialias": False', f"{T}/test_grid_resize.py"),
    Mutation("grid resize target exchanged", f"{M}/grid_resize.py", 'size=tuple(target.sizes.values())', 'size=tuple(target.sizes.values())[::-1]', f"{T}/test_grid_resize.py"),
    Mutation("grid resize drops the leading rows", f"{M}/grid_resize.py", 'table[..., :extra, :], cells', 'table[..., :extra, :] * 0, cells', f"{T}/test_grid_resize.py"),
    Mutation("grid resize from a scale factor", f"{M}/grid_resize.py", 'size=tuple(target.sizes.values())', 'scale_factor=tuple(t / s for t, s in zip(target.sizes.values(), source.sizes.values()))', f"{T}/test_grid_resize.py"),
    Mutation("grid sine axes exchanged", f"{M}/grid_sine.py", 'for axis in self.order:', 'for axis in self.order[::-1]:', f"{T}/test_grid_sine.py"),
    Mutation("grid sine layouts exchanged", f"{M}/grid_sine.py", 'if self.layout == "interleaved"', 'if self.layout == "concatenated"', f"{T}/test_grid_sine.py"),
    Mutation("grid sine frequencies of the whole width", f"{M}/grid_sine.py", 'frequencies = frequency_ladder(self.pairs, 2 * self.pairs', 'frequencies = frequency_ladder(self.pairs, self.d_model', f"{T}/test_grid_sine.py"),
    Mutation("grid sine cls gets a phase", f"{M}/grid_sine.py", 'rows.masked_fill((positions < len(grid.leading))[..., None], 0.0)', 'rows', f"{T}/test_grid_sine.py"),
    Mutation("grid sine counts from 0", f"{M}/grid_sine.py", '.cumsum(dim)', '.cumsum(dim) - 1', f"{T}/test_grid_sine.py"),
    Mutation("grid sine counts along the other axis", f"{M}/grid_sine.py", '(("row", 1), ("col", 2))', '(("row", 2), ("col", 1))', f"{T}/test_grid_sine.py"),
    Mutation("boxes normalised by the other side", f"{M}/grid_document.py", '[*page, *page]', '[*page[::-1], *page[::-1]]', f"{T}/test_grid_document.py"),
    Mutation("boxes rounded to the nearest", f"{M}/grid_document.py", '.floor().long()', '.round().long()', f"{T}/test_grid_document.py"),
    Mutation("boxes off the page accepted", f"{M}/grid_document.py", '(boxes >= 0) & (boxes <= limits)', '(boxes >= 0)', f"{T}/test_grid_document.py"),
    Mutation("boxes height and width exchanged", f"{M}/grid_document.py", '(self.h, y1 - y0), (self.w, x1 - x0)', '(self.h, x1 - x0), (self.w, y1 - y0)', f"{T}/test_grid_document.py"),
    Mutation("boxes inverted accepted", f"{M}/grid_document.py", 'boxes[..., 2:] < boxes[..., :2]', 'boxes[..., 2:] < 0', f"{T}/test_grid_document.py"),
    Mutation("axis bias query minus key", f"{M}/grid_bias.py", 'keys[..., None, :] - queries[..., :, None]', 'queries[..., :, None] - keys[..., None, :]', f"{T}/test_grid_bias.py"),
    Mutation("axis bias outside the scale", f"{M}/grid_bias.py", 'inside_scale=self.inside_scale,', 'inside_scale=False,', f"{T}/test_grid_bias.py"),
    Mutation("axis bias of the query's own coordinates", f"{M}/grid_bias.py", 'self.query_coordinates[axis], self.key_coordinates[axis]\n', 'self.query_coordinates[axis], self.query_coordinates[axis]\n', f"{T}/test_grid_bias.py"),
    Mutation("axis bias forgets the line", f"{M}/grid_bias.py", 'for axis, table in self.tables.items())', 'for axis, table in self.tables.items() if axis != POSITION)', f"{T}/test_grid_bias.py"),
    Mutation("time2vec origin forgotten", f"{M}/time2vec.py", "since = times.values - origin\n", "since = times.values\n", f"{T}/test_time2vec.py"),
    Mutation("time2vec counts rounded before the subtraction", f"{M}/time2vec.py", "(times.values - whole).double() - rest", "times.values.double() - whole - rest", f"{T}/test_time2vec.py"),
    Mutation("time2vec rest of the origin dropped", f"{M}/time2vec.py", ".double() - rest\n", ".double()\n", f"{T}/test_time2vec.py"),
    Mutation("time2vec unit turned over", f"{M}/time2vec.py", "float(Fraction(self.unit_seconds) / seconds)", "float(seconds / Fraction(self.unit_seconds))", f"{T}/test_time2vec.py"),
    Mutation("time2vec phase in single precision", f"{M}/time2vec.py", "* self.omega.double() + self.phi.double()", ".float() * self.omega + self.phi", f"{T}/test_time2vec.py"),
    Mutation("time2vec phase subtracted", f"{M}/time2vec.py", "+ self.phi.double()", "- self.phi.double()", f"{T}/test_time2vec.py"),
    Mutation("time2vec linear channel at the other end", f"{M}/time2vec.py", 'at = 0 if self.linear == "first"', 'at = 0 if self.linear == "last"', f"{T}/test_time2vec.py"),
    Mutation("time2vec cosine for sine", f"{M}/time2vec.py", 'torch.sin if self.function == "sin"', 'torch.sin if self.function == "cos"', f"{T}/test_time2vec.py"),
    Mutation("time2vec missing time is the origin", f"{M}/time2vec.py", ".masked_fill(~times.present[..., None], 0.0)", "", f"{T}/test_time2vec.py"),
    Mutation("time2vec zones not compared", f"{M}/time2vec.py", 'for name in ("clock", "zone"):\n            if', 'for name in ("clock",):\n            if', f"{T}/test_time2vec.py"),
    Mutation("time2vec range checked from below only", f"{M}/time2vec.py", "<= low and high <= self.declared_range[1]", "<= low", f"{T}/test_time2vec.py"),
    Mutation("time2vec frequencies rounded by a move", f"{M}/time2vec.py", "if moved.dtype.itemsize < 4 else moved", "if False else moved", f"{T}/test_time2vec.py"),
    Mutation("time2vec checkpoint of another axis loaded", f"{M}/time2vec.py", "require(saved.get(name) == value", "require(True", f"{T}/test_time2vec.py"),
    Mutation("naive integer starts at one", f"{M}/naive.py", 'alpha * integers("positions", positions).double()', 'alpha * (integers("positions", positions).double() + 1)', f"{T}/test_naive.py"),
    Mutation("naive fraction of the last position", f"{M}/naive.py", "positions.double() / length", "positions.double() / max(1, length - 1)", f"{T}/test_naive.py"),
    Mutation("naive least digit first", f"{M}/naive.py", "torch.arange(bits - 1, -1, -1, device", "torch.arange(bits, device", f"{T}/test_naive.py"),
    Mutation("naive length of the queries", f"{M}/naive.py", "length = geometry.key_length if", "length = geometry.query_length if", f"{T}/test_naive.py"),
    Mutation("naive one position past the end", f"{M}/naive.py", "if not 0 <= value < limit", "if not 0 <= value <= limit", f"{T}/test_naive.py"),
    Mutation("naive ratio falls with the width", f"{M}/naive_properties.py", "(sigma * math.sqrt(rows.shape[1]))", "(sigma * rows.shape[1])", f"{T}/test_naive.py"),
    Mutation("naive profile of neighbours only", f"{M}/naive_properties.py", "(wide[k:] - wide[:-k])", "(wide[1:] - wide[:-1])", f"{T}/test_naive.py"),
    Mutation("naive closest is the farthest", f"{M}/naive_properties.py", "for end in (torch.amin, torch.amax))", "for end in (torch.amax, torch.amax))", f"{T}/test_naive.py"),
    Mutation("naive growth of the length unseen", f"{M}/naive_properties.py", "_rows(code, 0, length, longer)", "_rows(code, 0, length, length)", f"{T}/test_naive.py"),
    Mutation("naive old collision blamed on a new row", f"{M}/naive_properties.py", "distinct_rows(whole)[0] - distinct_rows(after)[0]", "distinct_rows(whole)[0] - len(after)", f"{T}/test_naive.py"),
    Mutation("naive last duplicate named first", f"{M}/naive_properties.py", 'index, "amin")', 'index, "amax", include_self=False)', f"{T}/test_naive.py"),
    Mutation("migration: new rows with momentum", "positionlib/checkpoints/migration.py", 'torch.cat((m, m.new_zeros(added, m.shape[1]))) if m.ndim', 'torch.cat((m, m.new_ones(added, m.shape[1]))) if m.ndim', "tests/checkpoints/test_migration.py"),
    Mutation("migration: configuration left behind", "positionlib/checkpoints/migration.py", 'table.identity.config_max_position_embeddings + added)', 'table.identity.config_max_position_embeddings)', "tests/checkpoints/test_migration.py"),
    Mutation("migration: release keeps its name", "positionlib/checkpoints/migration.py", '_replace(release_id=release_id, checkpoint_id', '_replace(checkpoint_id', "tests/checkpoints/test_migration.py"),
    Mutation("migration: new rows called trained", "positionlib/checkpoints/migration.py", '+ (f"new:{policy}",) * max(added, 0)', '+ ("trained",) * max(added, 0)', "tests/checkpoints/test_migration.py"),
    Mutation("migration: shrinks without being asked", "positionlib/checkpoints/migration.py", 'require((added < 0) == (policy == "truncate")', 'require(added < 0 or policy != "truncate"', "tests/checkpoints/test_migration.py"),
    Mutation("migration: reserved rows in the mean", "positionlib/checkpoints/migration.py", '_fresh_rows(old[table.row_offset :], added', '_fresh_rows(old, added', "tests/checkpoints/test_migration.py"),
    Mutation("migration: interpolation one row short", "positionlib/checkpoints/migration.py", 'length + added - 1\n', 'length + added\n', "tests/checkpoints/test_migration.py"),
    Mutation("migration: repeat starts at the last row", "positionlib/checkpoints/migration.py", 'torch.arange(added, device=positions.device) % length', '(torch.arange(added, device=positions.device) + length - 1) % length', "tests/checkpoints/test_migration.py"),
    Mutation("migration: stale moments admitted", "positionlib/checkpoints/migration.py", '(moment.ndim == 0 or moment.shape == weight.shape)', 'moment.ndim in (0, 2)', "tests/checkpoints/test_migration.py"),
    Mutation("migration: old object shares memory", "positionlib/checkpoints/migration.py", 'else m.clone() for name, m in table.moments.items()}\n    identity', 'else m for name, m in table.moments.items()}\n    identity', "tests/checkpoints/test_migration.py"),
    Mutation("migration: untrained rows forgotten", "positionlib/checkpoints/migration.py", 'else word for hit', 'else "untrained" for hit', "tests/checkpoints/test_migration.py"),
    Mutation("rotary half split turns backwards", "positionlib/terms.py", "out = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)", "out = torch.cat((a * cos + b * sin, b * cos - a * sin), -1)", f"{T}/test_rotary.py"),
    Mutation("rotary pairings exchanged", "positionlib/terms.py", 'if self.pairing == "interleaved":', 'if self.pairing == "half_split":', f"{T}/test_rotary.py"),
    Mutation("rotary exponent of the whole head", f"{M}/rotary.py", "frequency_ladder(width // 2, width, base)", "frequency_ladder(width // 2, d_head, base)", f"{T}/test_rotary.py"),
    Mutation("rotary phase in float32", "positionlib/terms.py", "[..., None, :, None].to(torch.float64) * self.inverse_frequency.to(positions.device, torch.float64)", "[..., None, :, None].to(torch.float32) * self.inverse_frequency.to(positions.device, torch.float32)", f"{T}/test_rotary.py"),
    Mutation("rotary rounds before the sum", "positionlib/terms.py", "turned, rest = x[..., :width].to(wide), x[..., width:]", "turned, rest, cos, sin = x[..., :width], x[..., width:], cos.to(x.dtype), sin.to(x.dtype)", f"{T}/test_rotary.py"),
    Mutation("rotary keys left as they were", "positionlib/attention.py", "term.rotate(qc, positions[0]), term.rotate(kc, positions[1])", "term.rotate(qc, positions[0]), kc", f"{T}/test_rotary.py"),
    Mutation("rotary conversion inverted", f"{M}/rotary.py", 'half_split_from_interleaved if source == "interleaved" else', 'half_split_from_interleaved if source == "half_split" else', f"{T}/test_rotary.py"),
    Mutation("rotary conversion moves what does not turn", f"{M}/rotary.py", "width, channels = _rotated(d_head, rotary_dim), torch.arange(d_head)", "width, channels = _rotated(d_head, None), torch.arange(d_head)", f"{T}/test_rotary.py"),
    Mutation("rotary conversion across heads", f"{M}/rotary.py", "weight.unflatten(0, (-1, d_head))[:, order].flatten(0, 1)", "weight.unflatten(0, (d_head, -1))[order].flatten(0, 1)", f"{T}/test_rotary.py"),
    Mutation("rotary width of the head unchecked", "positionlib/terms.py", "else x.shape[-1] == self.d_head", "else width <= x.shape[-1]", f"{T}/test_rotary.py"),
    Mutation("transport moves a pair on one side", "positionlib/transport.py", 'for axis in (i for i, a in enumerate(axes.split()) if a == "N"):', 'for axis in [axes.split().index("N")]:', "tests/test_transport.py"),
    Mutation("transport pads with the last row", "positionlib/transport.py", "source.masked_fill(source == NEW, values.shape[axis])", "source.masked_fill(source == NEW, values.shape[axis] - 1)", "tests/test_transport.py"),
    Mutation("transport keeps what was to go", "positionlib/transport.py", "(~kept).long()", "kept.long()", "tests/test_transport.py"),
    Mutation("transport lets a new key be read", "positionlib/transport.py", 'value.fields("key_active") if move.creates else value.fields()', "value.fields()", "tests/test_transport.py"),
    Mutation("transport inverse keeps the new rows", "positionlib/transport.py", "order[..., order.shape[-1] - self.length :]", "order[..., : self.length]", "tests/test_transport.py"),
    Mutation("transport sorts downwards", "positionlib/transport.py", "cls.permute(keys.argsort(", "cls.permute((-keys).argsort(", "tests/test_transport.py"),
    Mutation("transport joins blocks in the other corner", "positionlib/transport.py", "before=sum(lengths[:i]), after=sum(lengths[i + 1 :])", "before=sum(lengths[i + 1 :]), after=sum(lengths[:i])", "tests/test_transport.py"),
    Mutation("transport lets joined parts read one another", "positionlib/transport.py", "pad=first.across) for fields", "pad=True) for fields", "tests/test_transport.py"),
    Mutation("transport forgets the rows of another length", "positionlib/transport.py", "require(all(n == length for a, n in", "require(True or all(n == length for a, n in", "tests/test_transport.py"),
    Mutation("graph past the table meets the disconnected row", f"{M}/graph.py", "distance.masked_fill(distance >= len(self.weight) - 1, len(self.weight))", "distance", f"{T}/test_compile.py::test_a_distance_without_a_row_is_refused_by_torch_only"),
    Mutation("run read one place too late", f"{R}/blocks.py", 'run.first - plan.low + i.start, seen', 'run.first - plan.low + i.start + 1, seen', f"{U}/test_sdpa.py"),
    Mutation("run hides the query's own key", f"{R}/blocks.py", 'seen = -run.first + 1 if', 'seen = -run.first if', f"{U}/test_sdpa.py"),
    Mutation("run queries not turned back", f"{R}/blocks.py", 'out[block.batch, block.heads, block.queries] = rows.flip(2)', 'out[block.batch, block.heads, block.queries] = rows', f"{U}/test_sdpa.py"),
    Mutation("diagonal read against its direction", f"{R}/blocks.py", '(*lead, row + place, place))', '(*lead, row, place))', f"{U}/test_sdpa.py"),
    Mutation("run content without its bias", f"{R}/blocks.py", 'content = q + term.content_bias[:, None]', 'content = q - term.content_bias[:, None]', f"{U}/test_blocks.py"),
    Mutation("run key rows unscaled", f"{R}/blocks.py", '(-1, n))), alpha=scale)', '(-1, n))))', f"{U}/test_blocks.py"),
    Mutation("run value rows dropped", f"{R}/blocks.py", 'rows += _Line(block.of_line(value_rows)', 'rows + _Line(block.of_line(value_rows)', f"{U}/test_blocks.py"),
    Mutation("run table gradient misses tiles", f"{R}/blocks.py", 'into[..., tile * self.n :', 'into[..., 0 * self.n :', f"{U}/test_blocks.py"),
    Mutation("run key gradient unscaled", f"{R}/blocks.py", '(q if content is None else content), alpha=scale)', '(q if content is None else content))', f"{U}/test_sdpa.py"),
    Mutation("run bias gradient by row", f"{R}/blocks.py", 'wide.sum((0, 2))', 'wide.sum((0, 2)).flip(-1)', f"{U}/test_sdpa.py"),
    Mutation("last keys without a tile", f"{R}/blocks.py", '(whole, m, m - whole))', '(whole, whole, m - whole))', f"{U}/test_blocks.py"),
    Mutation("run gradient of heads shared", f"{R}/blocks.py", 'x.permute(1, 2, 0, 3, 4).reshape(h * t, -1, c)', 'x.permute(0, 2, 1, 3, 4).reshape(h * t, -1, c)', f"{U}/test_blocks.py"),
    Mutation("mask that asks for a gradient", f"{R}/blocks.py", 't if t is None else t.detach()', 't', f"{U}/test_sdpa.py"),
    Mutation("second derivative taken for zero", f"{R}/blocks.py", 'if torch.is_grad_enabled():  #', 'if False:  #', f"{U}/test_sdpa.py"),
    Mutation("run spans a change of segment", f"{R}/runs.py", 'cut = cut | (labels[1:] != labels[:-1])', 'pass', f"{U}/test_runs.py"),
    Mutation("run counts from the first query", f"{R}/runs.py", 'k_position - (position + stop - 1 - start)))', 'k_position - position))', f"{U}/test_runs.py"),
    Mutation("run reads one of two stretches of keys", f"{R}/runs.py", 'if len(seen) == 1 and', 'if seen and', f"{U}/test_runs.py"),
    Mutation("run trusts what is not finite", f"{R}/runs.py", 'and others < LARGEST', '', f"{U}/test_blocks.py"),
    Mutation("run trusts a score that overflows", f"{R}/runs.py", 'return 4 * q.shape[3] * max(queries, keys) * keys * max(1.0, abs(scale)) < LARGEST and others < LARGEST', 'return queries + keys < float("inf") and others < LARGEST', f"{U}/test_blocks.py"),
    Mutation("rest left out", f"{R}/cpu.py", 'for row, rows in self.plan.rest:', 'for row, rows in ():', f"{U}/test_blocks.py"),
    Mutation("small calls leave the reference", f"{R}/cpu.py", '< SMALL', '< 0', f"{U}/test_sdpa.py"),
    Mutation("auto forgets compilers", f"{R}/cpu.py", 'if torch.compiler.is_compiling() or torch.jit.is_tracing():', 'if False:', f"{U}/test_sdpa.py"),
    Mutation("edge types of other queries", f"{M}/shaw.py", "self.edge_types[..., start:stop, :]", "self.edge_types[..., : stop - start, :]", f"{U}/test_blocks.py"),
    Mutation("tupe bias of other queries", f"{M}/tupe.py", "self.bias[:, :, start:stop]", "self.bias[:, :, : stop - start]", f"{U}/test_blocks.py"),
    Mutation("deberta third line turned", f"{M}/deberta.py", '("key_rows", "p2c", self.pos_query)', '("key_rows", "c2p", self.pos_query)', f"{U}/test_blocks.py"),
    Mutation("bert line turned", f"{M}/shaw_variants.py", "self.rule.classes(-offsets)", "self.rule.classes(offsets)", f"{U}/test_blocks.py"),
    Mutation("batch slice keeps all padding", "positionlib/geometry.py", "value.ndim == 2 + (f.name == \"allowed\")", "value.ndim == 9", "tests/test_geometry.py"),
]


def failing_test(tests: list[str], workspace: pathlib.Path, name: str) -> str | None:
    """The first test that fails in the workspace, or None."""
    environment = os.environ | {"PYTHONPATH": str(workspace), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return None
    if done.returncode != 1:  # pytest itself could not run: that proves nothing about the mutation
        raise SystemExit(f"{name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1]


def run(mutation: Mutation, workspace: pathlib.Path) -> str | None:
    """The first test that notices, or None."""
    target = workspace / mutation.file
    source = target.read_text("utf-8")
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: its text occurs {source.count(mutation.old)} times in {mutation.file}; update the mutation.")
    target.write_text(source.replace(mutation.old, mutation.new), "utf-8")
    try:
        return failing_test(mutation.tests.split(), workspace, mutation.name)
    finally:
        target.write_text(source, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only mutations whose name holds this word")
    chosen = [m for m in MUTATIONS if parser.parse_args().k in m.name]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        workspace = pathlib.Path(folder)
        for part in ("positionlib", "tests"):
            shutil.copytree(ROOT / part, workspace / part, ignore=shutil.ignore_patterns("__pycache__", "browser"))
        shutil.copy(ROOT / "pyproject.toml", workspace)
        untouched = failing_test(sorted({t for m in chosen for t in m.tests.split()}), workspace, "unmutated")
        if untouched:
            raise SystemExit(f"without any mutation {untouched} already fails")
        for mutation in chosen:
            caught = run(mutation, workspace)
            missed += caught is None
            print(f"{'caught' if caught else 'MISSED':7} {mutation.name}: {caught or 'no test failed'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
