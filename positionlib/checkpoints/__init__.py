"""Positional state outside a running model: released weights read and converted under a contract, tables that are migrated and released."""

from positionlib.checkpoints.contracts import PositionCheckpointContract
from positionlib.checkpoints.conversion import Conversion, contract, convert
from positionlib.checkpoints.families import FAMILIES
from positionlib.checkpoints.files import read_checkpoint, read_safetensors
from positionlib.checkpoints.migration import PositionTable, migrate_position_table, row_provenance
from positionlib.checkpoints.release import STATES, OutsideReceipt, Release

__all__ = ["FAMILIES", "STATES", "Conversion", "OutsideReceipt", "PositionCheckpointContract", "PositionTable", "Release", "contract", "convert",
           "migrate_position_table", "read_checkpoint", "read_safetensors", "row_provenance"]
