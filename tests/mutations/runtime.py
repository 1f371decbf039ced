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
    Mutation("part keeps its own unit", f"{R}/partial.py", 'a.l * from_a + b.l * from_b', 'a.l + b.l', f"{U}/test_partial.py"),
    Mutation("part's output not rescaled", f"{R}/partial.py", 'a.o * from_a + b.o * from_b', 'a.o + b.o', f"{U}/test_partial.py"),
    Mutation("empty part is NaN", f"{R}/partial.py", 'return m.masked_fill(m == -math.inf, 0.0)', 'return m', f"{U}/test_partial.py"),
    Mutation("part reads hidden keys", f"{R}/partial.py", 'hidden = scores.masked_fill(~visible, -math.inf)', 'hidden = scores', f"{U}/test_partial.py"),
    Mutation("part hides by a large number", f"{R}/partial.py", 'hidden = scores.masked_fill(~visible, -math.inf)', 'hidden = scores.masked_fill(~visible, -1e4)', f"{U}/test_partial.py"),
]
