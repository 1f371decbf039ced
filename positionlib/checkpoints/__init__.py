"""Positional state outside a running model: tables that are migrated, and released weights, admitted tensor by tensor."""

from positionlib.checkpoints.migration import PositionTable, migrate_position_table, row_provenance

__all__ = ["PositionTable", "migrate_position_table", "row_provenance"]
