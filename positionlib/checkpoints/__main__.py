"""python -m positionlib.checkpoints --family NAME FOLDER: what a checkpoint's positions mean, and whether every tensor reconciles.

FOLDER holds config.json and model.safetensors, or an index and its shards. Exit status 0 converted, 2 refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from positionlib.checkpoints.conversion import convert
from positionlib.checkpoints.families import FAMILIES
from positionlib.checkpoints.files import read_checkpoint
from positionlib.errors import PositionContractError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m positionlib.checkpoints", description="Read a checkpoint, reconcile it, and print its contract.")
    parser.add_argument("folder", help="with config.json and model.safetensors, or an index and its shards")
    parser.add_argument("--family", choices=tuple(FAMILIES), required=True, help="whose weights they are; the names alone do not tell")
    parser.add_argument("--json", action="store_true", help="print the contract as JSON, for a target to declare")
    options = parser.parse_args(arguments)
    try:
        weights = convert(*read_checkpoint(options.folder), family=options.family)
    except PositionContractError as error:
        print(f"refused: {''.join(c if c.isprintable() else '?' for c in str(error))}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(weights.contract.to_dict()))
        return 0
    print(", ".join(f"{len(names)} {group}" for group, names in weights.reconciled.items()))
    for name, value in asdict(weights.contract).items():
        print(f"{name:24} {value}")
    print(f"{'parts':24} {', '.join(weights.parts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
