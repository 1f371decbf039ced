"""How a call is cut into runs, against what the geometry says of every pair."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import positionlib as pl
from positionlib.runtime.runs import SHORTEST, _cut
from tests.runtime.calls import OTHERS, RUNS, B


def check(geometry: pl.AttentionGeometry, positions_matter: bool = True) -> tuple[int, int]:
    """Every pair is where the cut says it is; returns how many query rows are in runs, and how many in the rest."""
    runs, rest = _cut(geometry, B, positions_matter)
    shape = (B, geometry.query_length, geometry.key_length)
    visible = geometry.visible.expand(shape)
    offsets = (geometry.key_positions[..., None, :] - geometry.query_positions[..., :, None]).expand(shape)
    covered = torch.zeros(shape[:2], dtype=torch.int64)
    for run in runs:
        rows = (run.batch, run.queries)
        covered[rows] += 1
        outside = torch.ones(geometry.key_length, dtype=torch.bool)
        outside[run.keys] = False
        assert not visible[rows][..., outside].any()
        seen, offset = (x[rows][..., run.keys].flip(1) for x in (visible, offsets))  # the last query first
        i, j = torch.arange(seen.shape[1])[:, None], torch.arange(seen.shape[2])
        if positions_matter:
            assert torch.equal(offset, (run.first + i + j).expand_as(offset))
        assert torch.equal(seen, (offset <= 0) if geometry.causal else torch.ones_like(seen))
    for row, rows in rest:
        covered[row, rows] += 1
    in_rest = sum(rows.stop - rows.start for _, rows in rest)
    assert int(covered.max()) <= 1 and bool((covered == 1)[visible.any(-1)].all()) and not visible[covered == 0].any()
    return int(covered.sum()) - in_rest, in_rest


def test_the_usual_calls_are_runs():
    assert all(check(g)[1] == 0 for g in RUNS.values())
    assert check(RUNS["packed"])[0] == B * 70 and len(_cut(RUNS["packed"], B, True)[0]) == 3, "one run a sequence serves the whole batch"
    assert check(OTHERS["left padded"]) == (70 + 61, 9), "nine padded rows share a position"
    assert check(OTHERS["scattered padding"])[0] == 0


def test_positions_do_not_matter_to_content_that_sees_everything():
    shuffled = pl.AttentionGeometry(torch.randperm(40), torch.randperm(50), key_active=torch.arange(50) > 6)
    assert check(shuffled)[0] == 0 and check(shuffled, positions_matter=False) == (B * 40, 0)


@st.composite
def geometries(draw) -> pl.AttentionGeometry:
    """Stretches of consecutive positions in segments, with padding, shared or not by the batch."""
    def side(stretches: int) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = [(draw(st.integers(0, 40)), draw(st.integers(1, SHORTEST + 4)), draw(st.integers(0, 2))) for _ in range(stretches)]
        return (torch.cat([torch.arange(start, start + n) for start, n, _ in pieces]), torch.cat([torch.full((n,), s) for _, n, s in pieces]))

    (queries, query_segments), (keys, key_segments) = side(draw(st.integers(1, 3))), side(draw(st.integers(1, 3)))
    segments = {"query_segments": query_segments, "key_segments": key_segments} if draw(st.booleans()) else {}
    edge = torch.tensor(draw(st.lists(st.integers(0, len(keys)), min_size=B, max_size=B)))[:, None]
    active = {"key_active": torch.arange(len(keys)) >= edge} if draw(st.booleans()) else {}
    return pl.AttentionGeometry(queries, keys, causal=draw(st.booleans()), **segments, **active)


@given(geometries())
def test_every_pair_is_where_the_cut_says(geometry):
    check(geometry)
