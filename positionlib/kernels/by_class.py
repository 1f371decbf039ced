"""The host's share of what pairs read by class: products with the tables before and after the kernel, so that autograd trains them.

The kernel adds query_scores[i, c] = scale · q_i·query_rows[c] and key_scores[j, c′] = scale · k_j·key_rows[c′] (``classes``) and gives the
mass of the classes, M_ic = Σ_{j : c(i, j) = c} p_ij, of which M · value_rows is what the values of a relation add to the sum.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from positionlib.contract import KINDS
from positionlib.errors import require
from positionlib.forms import ByClass
from positionlib.kernels.arguments import Call
from positionlib.kernels.bias import classes_by_offset, require_rule
from positionlib.kernels.checks import has_shape, require_part
from positionlib.kernels.launch import accumulator
from positionlib.rules import require_ids

CLASS_AXIS = {"query_rows": -2, "key_rows": -2, "value_rows": -2, "bias": 0}


def with_classes(call: Call, form: ByClass) -> Call:
    """The call with what ``form`` adds to its scores, in the dtype of sums.

    Raises
    ------
    PositionContractError
        rows of another width than the heads', for another number of heads or of classes, classes of other pairs, both or neither of a rule
        and given classes.
    PositionRangeError
        a given class without a row, or an offset for which the rule has none.
    """
    (batch, heads, queries, _), wide = call.q.shape, accumulator(call.q.dtype)
    _require_parts(call, form)
    span, class_of, query_scores, key_scores = call.span, None, None, None
    if form.rule is not None:
        _refuse_far(form, call.query_positions, call.key_positions)
        span = form.rule.max_distance
        lines = [classes_by_offset(form.rule, sign, call.q.device) for sign in (form.sign, form.key_sign or form.sign)]
        class_of = torch.stack(lines).to(torch.int32)
    if form.query_rows is not None:
        query_scores = call.scale * (call.q.to(wide) @ form.query_rows.to(wide).mT)
    if form.bias is not None:
        every_row = form.bias.to(wide).T[:, None].expand(batch, heads, queries, -1)
        query_scores = every_row if query_scores is None else query_scores + every_row
    if form.key_rows is not None:
        keys, groups = call.k.to(wide), (call.k.shape[1], heads // call.k.shape[1])
        if call.key_active is not None:
            keys = keys.masked_fill(~call.key_active[..., None, :, None], 0.0)  # an unwritten slot may hold NaN, and 0 · NaN would reach the table
        rows = form.key_rows.to(wide).expand(heads, *form.key_rows.shape[-2:]).unflatten(0, groups)
        key_scores = call.scale * (keys[:, :, None] @ rows.mT).flatten(1, 2)
    return call._replace(
        span=span, class_of=class_of, classes=form.classes, query_scores=query_scores, key_scores=key_scores,
        pair_bias=None if form.pair_bias is None else _no_wider(form.pair_bias, wide).expand(batch, -1, -1, -1),
        mass_classes=0 if form.value_rows is None else form.value_rows.shape[-2], scale=call.scale if form.content else 0.0)


def _require_parts(call: Call, form: ByClass) -> None:
    (batch, heads, queries, width), keys, rule = call.q.shape, call.k.shape[2], form.rule
    read = {name: part for name in CLASS_AXIS if (part := getattr(form, name)) is not None}
    require(rule is None or form.classes is None, "classes", form.classes, "None beside a rule", "Give a rule, or a class for each pair.")
    if rule is None:
        require((form.classes is None) == (not read), "classes", form.classes, "a class for each pair, and rows or numbers by class", "Or give a rule.")
        count = next((part.shape[CLASS_AXIS[name]] for name, part in read.items() if isinstance(part, Tensor) and part.ndim > 1), 0)
    else:
        count = require_rule(rule).num_classes
    for name, part in read.items():
        require_part(name, part, call.q, *([(count, heads)] if name == "bias" else [(count, width), (heads, count, width)]))
    if form.pair_bias is not None:
        require_part("pair_bias", form.pair_bias, call.q, *((b, heads, queries, keys) for b in (1, batch)))
    if form.classes is not None:
        kind, dtypes, remedy = KINDS["Int"]
        dense = isinstance(form.classes, Tensor) and form.classes.dtype in dtypes and form.classes.layout == torch.strided
        require(dense and has_shape(form.classes, *((*lead, queries, keys) for lead in ((), (1,), (batch,)))), "classes", form.classes,
                f"{kind}, [{queries}, {keys}] or [{batch}, {queries}, {keys}]", remedy)
        require(form.classes.device == call.q.device, "classes", form.classes.device, f"device {call.q.device}, as q", "Move both to one device.")
        if not form.classes.is_cuda:
            require_ids("classes", form.classes, count)


def _no_wider(numbers: Tensor, wide: torch.dtype) -> Tensor:
    """In the dtype of sums where they have more digits: what a kernel adds to a tile must not change the tile's dtype."""
    return numbers.to(wide) if numbers.dtype == torch.float64 else numbers


def with_value_rows(out: Float[Tensor, "B H Q D"], mass: Float[Tensor, "B H Q C"], form: ByClass, dtype: torch.dtype) -> Float[Tensor, "B H Q D"]:
    """Σ_j p_ij (v_j + value_rows[c(i, j)]), rounded once."""
    return (out + mass @ form.value_rows.to(mass.dtype)).to(dtype)


def _refuse_far(form: ByClass, query_positions: Tensor, key_positions: Tensor) -> None:
    """A rule may have no class for offsets so far apart, and says so."""
    if query_positions.shape[-1] and key_positions.shape[-1]:
        queries, keys = query_positions.aminmax(dim=-1), key_positions.aminmax(dim=-1)
        apart = torch.stack((keys.min - queries.max, keys.max - queries.min))
        for sign in {form.sign, form.key_sign or form.sign}:
            form.rule.classes(apart if sign == "key_minus_query" else -apart)
