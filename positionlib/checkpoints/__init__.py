"""What happens to positional state between a training run and a release."""

from positionlib.checkpoints.migration import PositionTable, migrate_position_table, row_provenance

__all__ = ["PositionTable", "migrate_position_table", "row_provenance"]
