"""Faults in the backends of attention."""

from tests.mutations.fault import Mutation

R, U = "positionlib/runtime", "tests/runtime"

MUTATIONS = [
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
    Mutation("admission: a term's second need unnamed", "positionlib/capabilities.py", 'return frozenset(visibility | (_off_the_line(term)', 'return frozenset((_off_the_line(term)', "tests/test_admission.py"),
    Mutation("admission: rounding early is no need", "positionlib/capabilities.py", '({ROUNDED_BIAS} if term.rounded else set())', 'set()', "tests/test_admission.py"),
    Mutation("admission: content left out unseen", "positionlib/runtime/cpu.py", 'if not line.content:', 'if False:', "tests/test_admission.py"),
    Mutation("admission: sdpa drops the value term", "positionlib/runtime/cpu.py", 'if field != "bias" and getattr', 'if field not in ("bias", "value_rows") and getattr', "tests/test_admission.py"),
    Mutation("admission: the fallback is not asked", "positionlib/admission.py", 'second = admit(q, k, v, term, geometry, backend=fallback, scale=scale)', 'second = admit(q, k, v, term, geometry, backend="eager", scale=scale)', "tests/test_admission.py"),
    Mutation("admission: a fallback calls itself admitted", "positionlib/admission.py", 'needs, refused.missing, second.line)', 'needs, frozenset(), second.line)', "tests/test_admission.py"),
    Mutation("counters: bytes in the input's dtype", "positionlib/counters.py", 'wide = torch.promote_types(q.dtype, torch.float32)', 'wide = q.dtype', "tests/test_counters.py"),
    Mutation("counters: hidden pairs have offsets", "positionlib/counters.py", 'seen = ids[visible]', 'seen = ids.flatten()', "tests/test_counters.py"),
    Mutation("counters: padding is memory", "positionlib/counters.py", ' & visible.any(-2)', '', "tests/test_counters.py"),
    Mutation("counters: one direction of two", "positionlib/counters.py", 'len(admission.needs & {QUERY_SCORE, KEY_SCORE}) * scores', 'bool(admission.needs & {QUERY_SCORE, KEY_SCORE}) * scores', "tests/test_counters.py"),
    Mutation("counters: a block for the whole", "positionlib/counters.py", 'rows = queries if trace.backend == "eager" else', 'rows = queries if True else', "tests/test_counters.py"),
    Mutation("counters: every lookup hits", "positionlib/counters.py", 'self.hit = identity in self.terms', 'self.hit = bool(self.terms)', "tests/test_counters.py"),
]
