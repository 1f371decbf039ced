"""Positional state outside a running model: tables that are migrated and released, and released weights, admitted tensor by tensor."""

from positionlib.checkpoints.migration import PositionTable, migrate_position_table, row_provenance
from positionlib.checkpoints.release import STATES, OutsideReceipt, Release

__all__ = ["STATES", "OutsideReceipt", "PositionTable", "Release", "migrate_position_table", "row_provenance"]
