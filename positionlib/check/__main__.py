"""positionlib check: what a call feeds to a model, or what a model makes of it. Exit status 0 clean, 1 findings, 2 bad input.

    positionlib check [--family NAME] [--json] FILE
    positionlib check --family NAME --probe MODULE:CALLABLE [--json] [SETTINGS]        (:mod:`positionlib.check.probing` says what they hold)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from positionlib.check.families import FAMILIES
from positionlib.check.probing import check_probe
from positionlib.check.reading import check_file
from positionlib.errors import PositionContractError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command ``positionlib``; returns its exit status."""
    parser = argparse.ArgumentParser(prog="positionlib", description="Positional geometry of Transformer calls.")
    check = parser.add_subparsers(required=True, metavar="check").add_parser(
        "check", help="what geometry does this call feed?", description="Explain a call and find its faults. Exit status 0 clean, 1 findings, 2 bad input.")
    check.add_argument("file", nargs="?", help="a manifest (.yaml, .json), or raw arrays (.json, .npz); with --probe its settings (.json), if any")
    check.add_argument("--probe", metavar="MODULE:CALLABLE", help="a factory of yours, whose code is run: it takes no arguments and returns the step to probe")
    check.add_argument("--family", choices=tuple(FAMILIES), help="the model family that is fed; a manifest can do without")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.file is None and options.probe is None:
        check.error("a file, or --probe, is needed")
    try:
        report = check_probe(options.probe, options.family, options.file) if options.probe is not None else check_file(options.file, options.family)
    except PositionContractError as error:
        if options.json:
            print(json.dumps({"status": 2, "error": {"field": error.field, "message": str(error), "remedy": error.remedy}}))
        else:
            print(f"bad input: {_plain(str(error))}", file=sys.stderr)
        return 2
    print(json.dumps(report.to_dict()) if options.json else _plain(str(report)))
    return report.status


def command() -> int:
    """:func:`main` of a process of its own: what a probed model still prints while that ends is no part of the report."""
    status = main()
    sys.stdout.flush()
    os.dup2(2, 1)
    return status


def _plain(text: str) -> str:
    """Text that a terminal may be shown: names from a hostile file could hold control sequences, or no text at all."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


if __name__ == "__main__":
    sys.argv.insert(1, "check")
    sys.exit(command())
