"""Transformer-XL: the four terms by loops, the shift by brute force, the memory row by row, gradients and decode."""

import math

import pytest
import torch

import positionlib as pl
from positionlib.mechanisms.transformer_xl import relative_rows, relative_shift
from tests.refusals import refused

B, H, D, WIDTH = 2, 3, 4, 6
RANDOM = torch.Generator().manual_seed(1)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


def layer(**settings) -> pl.TransformerXL:
    module = pl.TransformerXL(WIDTH, H, D, **settings).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(random(*parameter.shape))
    return module


def r_of(module: pl.TransformerXL, h: int, distance: int) -> torch.Tensor:
    phases = [distance * 10_000 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)]
    row = torch.tensor([math.sin(p) for p in phases] + [math.cos(p) for p in phases], dtype=torch.float64)
    return module.weight[h * D : (h + 1) * D] @ row


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("clamp_len", [None, 3])
@pytest.mark.parametrize("queries, keys", [([4, 5], [0, 1, 2, 3, 4, 5]), ([[2, 9], [1, 2]], [[0, 2, 9], [0, 1, 2]])])
def test_the_four_terms_by_a_loop(clamp_len, queries, keys, bidirectional):
    module = layer(clamp_len=clamp_len, bidirectional=bidirectional)
    g = pl.AttentionGeometry(torch.tensor(queries), torch.tensor(keys), causal=not bidirectional)
    i_of, j_of = g.query_positions.expand(B, -1), g.key_positions.expand(B, -1)
    q, k = random(B, H, g.query_length, D), random(B, H, g.key_length, D)
    term = module(g)
    parts = term.parts(q, k, g.query_positions, g.key_positions)
    scores = term.scores(q, k, g.query_positions, g.key_positions, 0.5)
    visible = g.visible.expand(B, -1, -1)
    for b, i, j in visible.nonzero().tolist():
        for h in range(H):
            distance = int(i_of[b, i] - j_of[b, j])
            r = r_of(module, h, distance if clamp_len is None else max(-clamp_len, min(distance, clamp_len)))
            want = {"a": q[b, h, i] @ k[b, h, j], "b": q[b, h, i] @ r, "c": module.content_bias[h] @ k[b, h, j], "d": module.position_bias[h] @ r}
            for name, value in want.items():
                assert torch.allclose(parts[name][b, h, i, j], value, atol=1e-12), name
            assert torch.allclose(scores[b, h, i, j], 0.5 * sum(want.values()), atol=1e-12)


def test_the_scale_is_one_over_the_root_of_the_head_width():
    module, g = layer(), pl.AttentionGeometry.causal_self(5)
    q, k, v = (random(B, H, 5, D) for _ in range(3))
    out, trace = pl.attend(q, k, v, module(g), g, return_trace=True)
    parts = module(g).parts(q, k, g.query_positions, g.key_positions)
    scores = (sum(parts.values()) / math.sqrt(D)).masked_fill(~g.visible, -math.inf)
    assert trace.scale == 0.5 and torch.allclose(out, scores.softmax(-1) @ v, atol=1e-12)


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 6), (3, 5), (4, 4), (5, 6)])
def test_the_shift_by_brute_force(queries, keys):
    x, memory = random(2, queries, keys), keys - queries
    marked, cleared, released = (relative_shift(x, beyond=beyond) for beyond in ("nan", "zero", "leftovers"))
    for i in range(queries):
        for j in range(keys):
            if j <= i + memory:
                want = x[:, i, keys - 1 - (i + memory - j)]
                assert all(torch.equal(y[:, i, j], want) for y in (marked, cleared, released))
            else:
                assert marked[:, i, j].isnan().all() and not cleared[:, i, j].any()
                # One zero, then the next row from its first column on.
                left = j - (i + memory + 1)
                assert torch.equal(released[:, i, j], torch.zeros(2, dtype=x.dtype) if left == 0 else x[:, i + 1, left - 1])


def test_shifting_and_gathering_give_one_bd():
    module, g = layer(clamp_len=4), pl.AttentionGeometry.decode(5, 3)
    q, k = random(B, H, 3, D), random(B, H, 8, D)
    term = module(g)
    parts = term.parts(q, k, g.query_positions, g.key_positions)
    shifted = relative_shift(term.compact(q, torch.arange(7, -1, -1)))
    assert torch.allclose(shifted[..., g.visible], (parts["b"] + parts["d"])[..., g.visible], atol=1e-12)


def test_only_differences_of_positions_matter():
    module = layer()
    near, far = pl.AttentionGeometry.causal_self(4), pl.AttentionGeometry.causal_self(4, start=10**12)
    q, k, v = (random(B, H, 4, D) for _ in range(3))
    assert torch.equal(pl.attend(q, k, v, module(near), near), pl.attend(q, k, v, module(far), far))


def test_clamped_distances_share_one_row():
    rows = relative_rows(torch.tensor([9, 4, 3, 0]), WIDTH, clamp_len=3)
    assert torch.equal(rows[0], rows[2]) and torch.equal(rows[1], rows[2]) and rows[3].tolist() == [0, 0, 0, 1, 1, 1]
    assert math.isclose(rows[2, 0], math.sin(3), abs_tol=1e-15) and math.isclose(rows[2, WIDTH // 2], math.cos(3), abs_tol=1e-15)


def test_gradcheck_of_every_parameter_and_input():
    module, memory = layer(clamp_len=3), pl.SegmentMemory(1, 2, "time_first").update([random(2, B, 5)])
    g = memory.geometry(3)
    names, values = zip(*module.named_parameters())
    q, k, v = (random(B, H, n, D).requires_grad_() for n in (3, 5, 5))

    def run(q, k, v, *parameters):
        return pl.attend(q, k, v, torch.func.functional_call(module, dict(zip(names, parameters)), (g,)), g)

    assert set(names) == {"weight", "content_bias", "position_bias"}
    assert torch.autograd.gradcheck(run, (q, k, v, *values))


def test_prefill_chunks_and_decode_give_the_same_rows():
    module, whole = layer(clamp_len=6), pl.AttentionGeometry.causal_self(9)
    q, k, v = (random(B, H, 9, D) for _ in range(3))
    out = pl.attend(q, k, v, module(whole), whole)
    for start, stop in ((0, 4), (4, 8), (8, 9)):
        chunk = whole.slice_queries(start, stop)
        assert torch.allclose(pl.attend(q[:, :, start:stop], k, v, module(chunk), chunk), out[:, :, start:stop], atol=1e-12)
    for t in range(9):
        step = pl.AttentionGeometry.decode(t)
        got = pl.attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], module(step), step)
        assert torch.allclose(got, out[:, :, t : t + 1], atol=1e-12)


def test_one_layer_by_segments_with_enough_memory_is_the_whole_text():
    module, x = layer(), random(10, B, H * D)  # time first
    heads = x.transpose(0, 1).unflatten(-1, (H, D)).transpose(1, 2)
    whole = pl.AttentionGeometry.causal_self(10)
    want = pl.attend(heads, heads, heads, module(whole), whole)
    memory, rows = pl.SegmentMemory(1, 10, "time_first"), []
    for segment in x.split(3):
        k = memory.extend(0, segment).transpose(0, 1).unflatten(-1, (H, D)).transpose(1, 2)
        g = memory.geometry(len(segment))
        rows.append(pl.attend(k[:, :, -len(segment) :], k, k, module(g), g))
        memory = memory.update([segment])
    assert torch.allclose(torch.cat(rows, 2), want, atol=1e-12)


def test_tied_layers_sum_their_gradients_in_one_pair_of_biases():
    first = layer()
    second = pl.TransformerXL(WIDTH, H, D, tie_to=first)
    assert second.content_bias is first.content_bias and second.position_bias is first.position_bias and second.weight is not first.weight
    assert [name for name, _ in torch.nn.ModuleList([first, second]).named_parameters()] == ["0.weight", "0.content_bias", "0.position_bias", "1.weight"]


def numbered(positions: list[int], layout: str, layers: int = 1) -> list[torch.Tensor]:
    """States whose rows hold 100·layer + position."""
    rows = [torch.tensor(positions, dtype=torch.float64) + 100 * n for n in range(layers)]
    return [r[:, None, None].expand(-1, 2, 3) if layout == "time_first" else r[None, :, None].expand(2, -1, 3) for r in rows]


def held(memory: pl.SegmentMemory, layer: int = 0) -> list[int]:
    state = memory.states[layer]
    return (state[:, 1, 2] if memory.layout == "time_first" else state[1, :, 2]).long().tolist()


@pytest.mark.parametrize("layout", ["time_first", "batch_first"])
def test_the_memory_keeps_the_newest_rows_of_every_layer(layout):
    memory = pl.SegmentMemory(2, 4, layout)
    assert memory.length == 0
    memory = memory.update(numbered([0, 1, 2], layout, 2)).update(numbered([3, 4], layout, 2))
    assert memory.length == 4 and held(memory) == [1, 2, 3, 4] and held(memory, 1) == [101, 102, 103, 104]
    time = 0 if layout == "time_first" else 1
    extended = memory.extend(1, numbered([5, 6], layout, 2)[1])
    assert extended.select(1 - time, 0)[:, 0].tolist() == [101, 102, 103, 104, 105, 106]


def test_the_released_cut_for_ext_len_is_not_the_documented_one():
    """ext_len 2, mem_len 4, segments of 3: the swapped arguments keep 3 rows after the first segment where the comment means 1."""
    kept = {}
    for rule in ("documented", "released"):
        memory, kept[rule] = pl.SegmentMemory(1, 4, "time_first", 2, rule), []
        for start in (0, 3, 6):
            memory = memory.update(numbered(list(range(start, start + 3)), "time_first"))
            kept[rule].append(held(memory))
    assert kept["documented"] == [[0], [0, 3], [0, 3, 6]] and kept["released"] == [[0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 6]]


def test_without_ext_len_both_rules_agree():
    for lengths in ([1, 5, 2], [7, 1, 1]):
        memories = [pl.SegmentMemory(1, 4, "time_first", 0, rule) for rule in ("documented", "released")]
        for n in lengths:
            memories = [m.update(numbered(list(range(n)), "time_first")) for m in memories]
            assert held(memories[0]) == held(memories[1])


def test_memory_is_detached_and_its_own_copy():
    x = random(3, B, 4).requires_grad_()
    hidden = x * 2
    memory = pl.SegmentMemory(1, 2, "time_first").update([hidden])
    assert not memory.states[0].requires_grad and torch.equal(memory.states[0], hidden[1:])
    (memory.extend(0, x * 3).sum()).backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0)), "only the current segment has a gradient"
    with torch.no_grad():
        hidden.zero_()
    assert memory.states[0].abs().min() > 0


def test_no_memory_at_all():
    memory = pl.SegmentMemory(1, 0, "time_first").update(numbered([0, 1], "time_first"))
    assert memory.length == 0 and held(memory.update(numbered([2], "time_first"))) == []


def test_the_geometry_puts_memory_first():
    memory = pl.SegmentMemory(1, 3, "time_first").update(numbered([0, 1, 2], "time_first"))
    g = memory.geometry(2)
    assert g.query_positions.tolist() == [3, 4] and g.key_positions.tolist() == [0, 1, 2, 3, 4] and g.mode == "segment-memory"
    assert g.visible.tolist() == [[True, True, True, True, False], [True] * 5]
    window = memory.geometry(2, same_length=True).visible
    assert window.tolist() == [[False, True, True, True, False], [False, False, True, True, True]]


MEMORY = pl.SegmentMemory(2, 4, "time_first").update([torch.zeros(3, 2, 5)] * 2)
ZEROS = torch.zeros(1, 2, 3, 4)


@pytest.mark.parametrize("attempt, field", [
    (lambda: pl.TransformerXL(7, 2, 4), "d_model"),
    (lambda: pl.TransformerXL(8, 0, 4), "heads"),
    (lambda: pl.TransformerXL(8, 2, 4, clamp_len=0), "clamp_len"),
    (lambda: pl.TransformerXL(8, 2, 4, base=1.0), "base"),
    (lambda: pl.TransformerXL(8, 2, 4, tie_to=pl.TransformerXL(8, 3, 4)), "tie_to"),
    (lambda: pl.TransformerXL(8, 2, 4)(pl.AttentionGeometry.encoder(3)), "causal"),
    (lambda: pl.TransformerXL(8, 2, 4, bidirectional=True)(pl.AttentionGeometry.causal_self(3)), "causal"),
    (lambda: pl.TransformerXL(8, 2, 4, bidirectional=None), "bidirectional"),
    (lambda: pl.TransformerXL(8, 2, 4)(pl.AttentionGeometry.cross(2, 3)), "coordinate_frame"),
    (lambda: pl.attend(ZEROS, ZEROS, ZEROS, pl.TransformerXL(8, 3, 4)(pl.AttentionGeometry.causal_self(3)), pl.AttentionGeometry.causal_self(3)), "term"),
    (lambda: relative_shift(torch.zeros(4, 3)), "compact"),
    (lambda: relative_shift(torch.zeros(3, 4, dtype=torch.long)), "compact"),
    (lambda: relative_shift(torch.zeros(3, 4), beyond="mask"), "beyond"),
    (lambda: pl.SegmentMemory(0, 4, "time_first"), "layers"),
    (lambda: pl.SegmentMemory(1, -1, "time_first"), "mem_len"),
    (lambda: pl.SegmentMemory(1, 4, "sequence_first"), "layout"),
    (lambda: pl.SegmentMemory(1, 4, "time_first", 1, "paper"), "ext_rule"),
    (lambda: pl.SegmentMemory(1, 4, "time_first", states=(torch.zeros(1, 1, 1, requires_grad=True),)), "states"),
    (lambda: MEMORY.extend(2, torch.zeros(3, 2, 5)), "layer"),
    (lambda: MEMORY.extend(0, torch.zeros(2, 3, 5)), "hidden"),
    (lambda: MEMORY.extend(0, torch.zeros(3, 10)), "hidden"),
    (lambda: MEMORY.update([torch.zeros(3, 2, 5)]), "hidden_states"),
    (lambda: MEMORY.update([torch.zeros(3, 2, 5), torch.zeros(2, 2, 5)]), "hidden_states"),
    (lambda: pl.SegmentMemory(1, 0, "time_first").geometry(2, same_length=True), "mem_len"),
])
def test_bad_input_is_refused_by_name(attempt, field):
    refused(attempt, field)


def test_a_layout_has_no_default():
    with pytest.raises(TypeError):
        pl.SegmentMemory(1, 4)


def test_a_distance_that_float64_cannot_tell_from_the_next_is_refused_unless_it_is_clamped():
    far = torch.tensor([2**53 + 1])
    refused(lambda: relative_rows(far, WIDTH), "distances")
    assert torch.equal(relative_rows(far, WIDTH, clamp_len=7), relative_rows(torch.tensor([7]), WIDTH))
