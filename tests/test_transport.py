"""Rows and what belongs to them move together: against lookups by hand, and against attention before and after the move."""

import pytest
import torch
from hypothesis import given, strategies as st

import positionlib as pl
from positionlib.transport import NEW, Field, GeometryRows, Move, transport
from tests.refusals import refused

F64 = torch.float64
ORDER = torch.tensor([2, 0, 3, 1])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def bundle(n=4, batch=2):
    """Every kind of field, each entry a number of its own."""
    def count(*shape):
        return torch.arange(torch.Size(shape).numel()).reshape(shape)

    return {"x": Field(count(batch, n, 3).double(), "B N D", pad=0.0), "bbox": Field(count(batch, n, 4), "B N corners", pad=-7),
            "page": Field(count(n), "N", pad=-1), "labels": Field(count(batch, n), "B N", pad=-100),
            "active": Field(count(batch, n) % 3 > 0, "B N", pad=False), "bias": Field(count(5, n, n), "H N N", pad=9),
            "edges": Field(count(batch, n, n) % 2 == 0, "B N N", pad=False), "paths": Field(count(n, n, 2), "N N hops", pad=-1)}


def by_hand(field, source):
    """Entry by entry; ``source`` is one list of row numbers for each batch row."""
    names = field.axes.split()
    values = field.values if names[0] == "B" else field.values.expand(len(source), *field.values.shape)
    rows = [i - (names[0] == "B") for i, a in enumerate(names) if a == "N"]
    shape = [len(source[0]) if i in rows else n for i, n in enumerate(values.shape[1:])]
    out = torch.empty(len(source), *shape, dtype=values.dtype)
    for b, at in enumerate(source):
        for index in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)).tolist():
            old = [at[i] if axis in rows else i for axis, i in enumerate(index)]
            out[(b, *index)] = field.pad if NEW in (old[axis] for axis in rows) else values[(b, *old)]
    return out


MOVES = {
    "permute": (Move.permute(ORDER), [2, 0, 3, 1]), "sort": (Move.sort(torch.tensor([0.5, -1.0, 0.5, 0.0])), [1, 3, 0, 2]),
    "drop": (Move.keep(torch.tensor([True, False, False, True])), [0, 3]), "pad": (Move.pad(4, before=1, after=2), [NEW, 0, 1, 2, 3, NEW, NEW]),
    "chunk": (Move.chunks(4, 3)[1], [3]), "of each batch row": (Move.permute(torch.stack((ORDER, ORDER.flip(0)))), [[2, 0, 3, 1], [1, 3, 0, 2]]),
    "drop of each batch row": (Move.keep(torch.tensor([[True, False, True, True], [False, False, True, False]])), [[0, 2, 3], [2, NEW, NEW]]),
    "drop all": (Move.keep(torch.zeros(4, dtype=torch.bool)), []),
}


@pytest.mark.parametrize("kind", MOVES)
def test_every_field_moves_by_the_same_rows(kind):
    move, source = MOVES[kind]
    source = source if source and isinstance(source[0], list) else [source] * 2
    rows, moved = bundle(), transport(bundle(), move=move)
    assert moved.keys() == rows.keys()
    for name, field in rows.items():
        want = by_hand(field, source)
        batched = "B" in moved[name].axes
        assert batched == ("B" in field.axes or move.source.ndim == 2)
        assert torch.equal(moved[name].values, want if batched else want[0]), name
        assert moved[name].values.dtype == field.values.dtype


@given(st.permutations(range(6)), st.integers(0, 3), st.integers(0, 3))
def test_the_inverse_brings_every_field_back(order, before, after):
    rows = bundle(6)
    for move in (Move.permute(torch.tensor(order)), Move.pad(6, before=before, after=after), Move.permute(torch.tensor([order, order[::-1]]))):
        back = transport(transport(rows, move=move), move=move.inverse())
        for name, field in rows.items():
            want = field.values.expand_as(back[name].values)
            assert torch.equal(back[name].values, want), name


def test_chunks_joined_again_are_the_rows():
    rows = {name: field for name, field in bundle().items() if field.axes.count("N") == 1}
    joined = transport(*(transport(rows, move=chunk) for chunk in Move.chunks(4, 3)))
    assert all(torch.equal(joined[name].values, rows[name].values) for name in rows)


def test_joined_pairs_stand_in_blocks():
    a, b = bundle(2), bundle(3)
    joined = transport(a, b)
    for name, field in joined.items():
        names = field.axes.split()
        if names.count("N") == 1:
            assert torch.equal(field.values, torch.cat((a[name].values, b[name].values), names.index("N")))
    assert joined["bias"].values[0].tolist() == [[0, 1, 9, 9, 9], [2, 3, 9, 9, 9], [9, 9, 0, 1, 2], [9, 9, 3, 4, 5], [9, 9, 6, 7, 8]]
    linked = joined["edges"].values
    assert not linked[:, :2, 2:].any() and not linked[:, 2:, :2].any() and torch.equal(linked[:, 2:, 2:], b["edges"].values)
    assert joined["paths"].values[1, 4].tolist() == [-1, -1] and joined["paths"].values[3, 4].tolist() == b["paths"].values[1, 2].tolist()
    with pytest.raises(pl.PositionContractError, match="bias = None: expected a pad for pairs"):
        transport(*({"bias": Field(p["bias"].values, "H N N")} for p in (a, b)))


@pytest.mark.parametrize("sizes, field", [(((3, 2), (2, 3)), "y"), (((3, 3), (2, 1)), "y"), (((2, 3), (3, 2), (4, 4)), "y")])
def test_parts_whose_own_rows_do_not_match_are_not_joined_because_their_sum_does(sizes, field):
    """Row 2 of the first x would stand beside row 0 of the second y."""
    refused(lambda: transport(*({"x": Field(torch.arange(n), "N"), "y": Field(torch.arange(m), "N")} for n, m in sizes)), field)


def test_a_pair_matrix_of_a_part_has_that_part_s_rows_on_both_sides():
    refused(lambda: transport(*({"pairs": Field(torch.zeros(shape), "N N", pad=0.0)} for shape in ((3, 2), (2, 3)))), "pairs")


def content(rows):
    return None


def attended(rows, term=content):
    return pl.attend(*(rows[n].values for n in "qkv"), term(rows), rows["call"].geometry)


def call_rows(geometry, **settings):
    n, batch = geometry.key_length, geometry.batch or 2
    qkv = {name: Field(normal(batch, 2, n, 4, seed=s), "B H N D", pad=float("nan")) for s, name in enumerate("qkv")}
    distance = Field(torch.arange(n * n).reshape(n, n) % 4, "N N", pad=0)
    return {**qkv, "distance": distance, "call": GeometryRows(geometry, "both", pad=0, **settings)}


def edges(rows):
    torch.manual_seed(3)
    return pl.EdgeRelative(4, 4).double()(rows["call"].geometry, rows["distance"].values)


def t5(rows):
    torch.manual_seed(3)
    return pl.T5Bias(2, 8, 20, bidirectional=not rows["call"].geometry.causal).double()(rows["call"].geometry)


def rotary(rows):
    return pl.Rotary(4, pairing="half_split")(rows["call"].geometry)


GEOMETRIES = {
    "plain": pl.AttentionGeometry.encoder(6), "causal": pl.AttentionGeometry.causal_self(6, start=4),
    "packed and padded": pl.AttentionGeometry(torch.arange(6), torch.arange(6), key_active=torch.tensor([[1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1]]) == 1,
                                              query_segments=torch.tensor([0, 0, 0, 1, 1, 1]), key_segments=torch.tensor([0, 0, 0, 1, 1, 1])),
    "allowed": pl.AttentionGeometry.encoder(6, allowed=torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(1)) < 0.6),
}


@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("term", [content, t5, edges, rotary])
@given(order=st.permutations(range(6)))
def test_attending_after_a_permutation_is_permuting_what_was_attended(kind, term, order):
    rows, move = call_rows(GEOMETRIES[kind]), Move.permute(torch.tensor(order))
    out = {"out": Field(attended(rows, term), "B H N D")}
    assert torch.allclose(attended(transport(rows, move=move), term), transport(out, move=move)["out"].values, atol=1e-13)


def test_a_mask_left_behind_is_another_result():
    rows, move = call_rows(GEOMETRIES["allowed"]), Move.permute(torch.tensor([1, 0, 2, 3, 4, 5]))
    moved = transport(rows, move=move)
    out = transport({"out": Field(attended(rows), "B H N D")}, move=move)["out"].values
    assert not torch.allclose(attended({**moved, "call": rows["call"]}), out, atol=1e-3)


@pytest.mark.parametrize("kind", GEOMETRIES)
@pytest.mark.parametrize("term", [content, t5, edges, rotary])
@pytest.mark.parametrize("before, after", [(2, 0), (0, 3), (1, 1)])
def test_padded_rows_change_no_real_row(kind, term, before, after):
    rows, move = call_rows(GEOMETRIES[kind]), Move.pad(6, before=before, after=after)
    padded = transport(rows, move=move)
    assert padded["q"].values[:, :, :before].isnan().all(), "the new rows hold what their field says"
    assert torch.allclose(attended(padded, term)[:, :, before : before + 6], attended(rows, term), atol=1e-13)


@pytest.mark.parametrize("term", [content, t5, edges, rotary])
def test_dropping_inactive_rows_changes_no_other(term):
    rows = call_rows(GEOMETRIES["packed and padded"])
    active = rows["call"].geometry.key_active
    kept = transport(rows, move=Move.keep(active))
    before, after = attended(rows, term), attended(kept, term)
    for b in range(2):
        n = int(active[b].sum())
        assert torch.allclose(after[b, :, :n], before[b, :, active[b]], atol=1e-13)
        assert kept["call"].geometry.key_active[b].tolist() == [True] * n + [False] * (after.shape[2] - n)


def test_evicting_keys_and_choosing_queries_moves_one_side():
    geometry = GEOMETRIES["causal"]
    rows, keep = call_rows(geometry), torch.tensor([True, False, True, True, False, True])
    cache = transport({"k": rows["k"], "v": rows["v"], "call": GeometryRows(geometry, "keys")}, move=Move.keep(keep))
    hidden = pl.attend(*(rows[n].values for n in "qkv"), None, pl.AttentionGeometry.causal_self(6, start=4, key_active=keep))
    assert torch.allclose(pl.attend(rows["q"].values, cache["k"].values, cache["v"].values, None, cache["call"].geometry), hidden, atol=1e-13)
    late = transport({"q": rows["q"], "call": GeometryRows(geometry, "queries")}, move=Move.chunks(6, 4)[1])
    assert torch.equal(late["call"].geometry.visible, geometry.slice_queries(4, 6).visible)
    assert torch.allclose(pl.attend(late["q"].values, rows["k"].values, rows["v"].values, None, late["call"].geometry), attended(rows)[:, :, 4:], atol=1e-13)


@pytest.mark.parametrize("across", [False, True])
def test_joined_sequences_read_one_another_only_when_they_may(across):
    a, b = call_rows(pl.AttentionGeometry.causal_self(3), across=across), call_rows(pl.AttentionGeometry.causal_self(6, start=3), across=across)
    joined = transport(a, b)
    geometry = joined["call"].geometry
    assert geometry.key_positions.tolist() == list(range(9))
    if across:
        assert torch.equal(geometry.visible, pl.AttentionGeometry.causal_self(9).visible) and geometry.allowed is None
    else:
        assert torch.allclose(attended(joined), torch.cat((attended(a), attended(b)), 2), atol=1e-13)


def test_what_one_part_leaves_out_is_written_out():
    rows = [GeometryRows(GEOMETRIES[k], "both", across=True) for k in ("allowed", "plain")]
    with pytest.raises(pl.PositionContractError, match="g.allowed"):
        transport(*({"g": r} for r in rows))  # [2, 6, 6] and [6, 6]
    first = pl.AttentionGeometry.encoder(2, allowed=torch.eye(2) == 1, key_active=torch.tensor([True, False]))
    joined = transport({"g": GeometryRows(first, "both", across=True)}, {"g": GeometryRows(pl.AttentionGeometry.encoder(1), "both", across=True)})
    assert joined["g"].geometry.visible.tolist() == [[True, False, True], [False, False, True], [True, False, True]]


def test_gradients_go_back_to_their_rows():
    x, move = normal(2, 4, 3).requires_grad_(), Move.pad(4, before=1)
    weight = normal(2, 5, 3, seed=1)
    (g,) = torch.autograd.grad((transport({"x": Field(x, "B N D", pad=0.0)}, move=move)["x"].values * weight).sum(), x)
    assert torch.equal(g, weight[:, 1:])


def test_rows_of_nothing_can_be_padded_and_moved():
    empty = {"x": Field(torch.zeros(2, 0, 3), "B N D", pad=1.5), "m": Field(torch.zeros(0, 0, dtype=torch.bool), "N N", pad=True)}
    assert all(f.values.shape == empty[n].values.shape for n, f in transport(empty, move=Move.permute(torch.arange(0))).items())
    padded = transport(empty, move=Move.pad(0, after=2))
    assert torch.equal(padded["x"].values, torch.full((2, 2, 3), 1.5)) and padded["m"].values.all() and padded["m"].values.shape == (2, 2)
    nobody = {"x": Field(torch.zeros(0, 3, 4), "B N D", pad=0.0), "pairs": Field(torch.zeros(3, 3), "N N", pad=0.0)}
    moved = transport(nobody, move=Move(torch.zeros(0, 2, dtype=torch.long), 3))
    assert moved["x"].values.shape == (0, 2, 4) and moved["pairs"].values.shape == (0, 2, 2)


ROWS, CALL = bundle(), {"g": GeometryRows(GEOMETRIES["plain"], "both")}
JOINABLE = GeometryRows(GEOMETRIES["plain"], "both", across=True)


@pytest.mark.parametrize("attempt, field", [
    (lambda: transport({**ROWS, "late": Field(torch.zeros(5), "N")}, move=Move.permute(ORDER)), "late"),
    (lambda: transport({**ROWS, "bias": Field(torch.zeros(4, 5), "N N")}, move=Move.permute(ORDER)), "bias"),
    (lambda: transport({**ROWS, "x": Field(torch.zeros(3, 4), "B N")}, move=Move.permute(ORDER)), "bbox"),
    (lambda: transport(ROWS, move=Move.permute(torch.arange(4).repeat(3, 1))), "x"),
    (lambda: transport({"x": Field(torch.zeros(4), "N")}, move=Move.pad(4, after=1)), "x"),
    (lambda: transport(CALL, move=Move.pad(6, after=1)), "g.query_positions"), (lambda: transport(CALL, move=Move.permute(ORDER)), "g.query_positions"),
    (lambda: transport({**ROWS, "late": torch.zeros(4)}, move=Move.permute(ORDER)), "late"), (lambda: GeometryRows(ROWS, "both"), "geometry"),
    (lambda: transport(), "parts"), (lambda: transport(ROWS, {"x": ROWS["x"]}), "parts"),
    (lambda: transport({"x": ROWS["x"]}, {"x": ROWS["labels"]}), "x"),
    (lambda: transport({"x": ROWS["page"]}, {"x": Field(torch.arange(4), "N", pad=0)}), "x"),
    (lambda: transport({"x": ROWS["page"]}, {"x": Field(torch.arange(4, device="meta"), "N", pad=-1)}), "x"),
    (lambda: transport({"x": Field(torch.zeros(4, 2), "N D")}, {"x": Field(torch.zeros(4, 3), "N D")}), "x"),
    (lambda: transport({"g": JOINABLE}, {"g": ROWS["x"]}), "g"), (lambda: transport(CALL, CALL), "g.across"),
    (lambda: transport(*({"g": GeometryRows(GEOMETRIES["plain"], "keys", across=True)},) * 2), "g.side"),
    (lambda: transport({"g": JOINABLE}, {"g": GeometryRows(GEOMETRIES["causal"], "both", across=True)}), "g"),
    (lambda: GeometryRows(GEOMETRIES["plain"], "rows"), "side"), (lambda: Field(torch.zeros(4, 2), "N"), "values"),
    (lambda: Field(torch.zeros(4, 2), "H D"), "axes"), (lambda: Field(torch.zeros(4, 2), "N B"), "axes"),
    (lambda: Field(torch.zeros(4), "N", pad=False), "pad"), (lambda: Field(torch.zeros(4) == 0, "N", pad=0), "pad"),
    (lambda: Field(torch.zeros(4).long(), "N", pad=0.5), "pad"), (lambda: Field(torch.zeros(4, dtype=torch.uint8), "N", pad=-1), "pad"),
    (lambda: Move.permute(torch.tensor([0, 0, 1])), "order"), (lambda: Move.permute(torch.tensor([0.0, 1.0])), "order"),
    (lambda: Move.sort(torch.tensor([0.0, float("nan")])), "keys"), (lambda: Move.keep(torch.tensor([1, 0])), "kept"),
    (lambda: Move.pad(4, after=-1), "after"), (lambda: Move.chunks(4, 0), "size"), (lambda: Move(torch.tensor([0, 0]), 2), "source"),
    (lambda: Move(torch.tensor([2]), 2), "source"), (lambda: Move(torch.tensor([-2]), 2), "source"), (lambda: Move.chunks(4, 3)[0].inverse(), "source")])
def test_what_does_not_fit_is_refused_by_name(attempt, field):
    refused(attempt, field)
