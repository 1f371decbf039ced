"""Failures of 0x02: a table that was made for another width, and a coordinate that never reached its place."""

from __future__ import annotations

import torch
from torch import Tensor

from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.lab.x05 import check_ladder
from positionlib.mechanisms.alibi import ALiBi
from positionlib.mechanisms.sinusoidal import sinusoidal_table
from positionlib.routes import require_route, run


def require_width(table: Tensor, d_model: int) -> None:
    """Refuse a stored table of another width than the model's, before anyone cuts it to fit."""
    require(table.shape[-1] == d_model, "table", table, f"rows of width {d_model}, as the model's states",
            "Build or load the table of this model. Its columns mean nothing in another width, so do not cut them.")


def _layer(biased: bool) -> dict[str, Tensor]:
    """One causal head of width 4 over six rows, with or without the ALiBi slopes that its weights were trained with."""
    generator = torch.Generator().manual_seed(2)
    content = torch.randn(1, 6, 4, generator=generator, dtype=torch.float64)
    weights = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    geometry = AttentionGeometry.causal_self(6)
    return run(content, weights, ALiBi(1, slopes=[0.5])(geometry) if biased else None, geometry)


register(Failure(
    id="0x02.table-of-another-width", section="0x02", kind="wrong_answer", title="A table built for width 16 is cut to a model of width 8",
    broken=lambda: sinusoidal_table(64, 16)[:, :8], right=lambda: sinusoidal_table(64, 8),
    guard=check_ladder, guard_name="sinusoidal-ladder",
    source="article 0x0C (using a PE table built for another d_model); positional-encodings 6.0.3 cuts the table of width d + 1 at odd d"))

register(Failure(
    id="0x02.learned-table-cut", section="0x02", kind="wrong_answer", title="A learned table of width 16 is cut to a model of width 8",
    broken=lambda: _stored(16)[:, :8], right=lambda: _stored(8), guard=lambda table: require_width(table, 8), guard_name="stored-width",
    source="article 0x0C (using a PE table built for another d_model)", broken_subject=lambda: _stored(16), right_subject=lambda: _stored(8)))

register(Failure(
    id="0x02.table-not-cut", section="0x02", kind="late_error", title="A table of width 16 meets states of width 8 only when they are added",
    broken=lambda: torch.zeros(2, 4, 8) + sinusoidal_table(4, 16), right=lambda: torch.zeros(2, 4, 8) + sinusoidal_table(4, 8),
    guard=lambda table: require_width(table, 8), guard_name="stored-width", source="article 0x0C (using a PE table built for another d_model)",
    broken_subject=lambda: sinusoidal_table(4, 16), right_subject=lambda: sinusoidal_table(4, 8)))

register(Failure(
    id="0x02.route-not-run", section="0x02", kind="wrong_answer", title="A model trained with a score bias runs with no coordinate at all",
    broken=lambda: _layer(biased=False)["Y"], right=lambda: _layer(biased=True)["Y"],
    guard=lambda after: require_route("S", _layer(biased=False), after), guard_name="first changed tensor",
    source="sgl-project/sglang#16868", broken_subject=lambda: _layer(biased=False), right_subject=lambda: _layer(biased=True)))


def _stored(width: int) -> Tensor:
    """A checkpoint's learned table: eight rows, without any rule that its values follow."""
    return torch.randn(8, width, generator=torch.Generator().manual_seed(width))
