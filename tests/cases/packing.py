"""Packed rows and continued calls: coordinates, ownership, offsets."""

from __future__ import annotations

from positionlib import ALiBi, AttentionGeometry, PositionCall, attend
from positionlib.padding import cu_seqlens, lengths_from_segments
from tests.cases.expect import Call, Expectation
from tests.cases.values import array, ids, scale


def pack(call: Call, expect: Expectation) -> None:
    reset = call.choose("coordinate_rule", {"reset_per_segment": True, "continuous": False})
    packed = PositionCall.packed(call["lengths"], causal=call.get("causal", True), reset=reset)
    geometry = packed.geometry()
    expect.value(geometry.query_positions, "positions")
    expect.value(geometry.query_segments, "segment_ids")
    expect.value(geometry.visible, "visible")
    expect.value(packed.cu_seqlens, "cu_seqlens")


def packed_attention(call: Call, expect: Expectation) -> None:
    geometry = PositionCall.packed(call["lengths"], causal=call["causal"]).geometry()
    q, k, v = (array(call[name])[None, None] for name in "qkv")
    term = ALiBi(1, slopes=[call["alibi_slope"]])(geometry) if "alibi_slope" in call else None
    out = attend(q, k, v, term, geometry, scale=scale(call["scale"], q.shape[-1]))[0, 0]
    expect.value(out, "outputs")


def pack_from_metadata(call: Call, expect: Expectation) -> None:
    segments, positions = ids(call["segment_ids"]), ids(call["positions"])
    geometry = AttentionGeometry(positions, positions, causal=call.get("causal", True), query_segments=segments, key_segments=segments)
    expect.value(cu_seqlens(lengths_from_segments(segments)), "cu_seqlens")
    expect.value(geometry.visible, "visible")
    for name in expect.keys(r"visible_row_(\d+)"):
        expect.value(geometry.visible[int(name[1])], name[0])


def relative_offsets(call: Call, expect: Expectation) -> None:
    geometry = AttentionGeometry(ids(call["query_positions"]), ids(call["key_positions"]))
    for sign in ("query_minus_key", "key_minus_query"):
        expect.value(geometry.offsets(sign), sign)


def committed_length_trace(call: Call, expect: Expectation) -> None:
    calls = PositionCall.chunked_prefill(call["append_lengths"], start=call.get("start", 0))
    after = [*calls[1:], calls[-1].append(1)]
    expect.value([one.query_space.logical_positions[0] for one in calls], "query_start_of_each_call")
    expect.value([one.cache.committed_length for one in after], "committed_after")


def causal_visibility(call: Call, expect: Expectation) -> None:
    geometry = AttentionGeometry(ids(call["query_positions"]), ids(call["key_positions"]), causal=True)
    expect.value(geometry.visible)


HANDLERS = {
    "pack": pack, "packed_attention": packed_attention, "pack_from_metadata": pack_from_metadata, "relative_offsets": relative_offsets,
    "committed_length_trace": committed_length_trace, "causal_visibility": causal_visibility,
}
