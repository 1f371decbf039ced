"""The host's share of products of rows: shapes and dtypes. The kernel's is ``tupe``, and a bias by offset comes as every other does."""

from __future__ import annotations

from positionlib.errors import require, whole_number
from positionlib.forms import ByRow
from positionlib.kernels.arguments import Call
from positionlib.kernels.checks import require_part
from positionlib.kernels.launch import accumulator


def with_rows(call: Call, form: ByRow) -> Call:
    """The call with what ``form`` adds to its scores: rows in q's dtype, numbers in the dtype of sums.

    Raises
    ------
    PositionContractError
        rows for other heads, lengths or batch rows than the call's, or of another width than the heads; numbers of CLS without its position.
    """
    for name, rows, like in (("query_rows", form.query_rows, call.q), ("key_rows", form.key_rows, call.k)):
        require_part(name, rows, call.q, *((batch, call.q.shape[1], *like.shape[2:]) for batch in (1, call.q.shape[0])))
    call = call._replace(query_rows2=form.query_rows.to(call.q.dtype), key_rows2=form.key_rows.to(call.q.dtype))
    if form.cls is not None:
        require_part("cls", form.cls, call.q, (2, call.q.shape[1]))
        require(whole_number(form.cls_position) is not None, "cls_position", form.cls_position, "a position", "Say which row is CLS.")
        call = call._replace(cls=form.cls.to(accumulator(call.q.dtype)), cls_position=form.cls_position)
    return call
