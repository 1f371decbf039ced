"""The conversion table: each family, what became of its tensors, what its contract states, and how far its parts are from the source's answers.

    python -m tests.checkpoints [-v]        -v prints each contract too. Exit status 0 when every difference is within its bound.
"""

import argparse
import sys
from dataclasses import asdict

from tests.checkpoints import official
from tests.checkpoints.conversions import LABELS, Proof, prove, recorded

GROUPS = ("read", "elsewhere", "generated", "head")
COLUMNS = "{:34}{:>6}{:>11}{:>11}{:>6}{:>8}{:>14}{:>10}  {}"


def row(proof: Proof) -> str:
    """The part that is farthest, as a multiple of its bound, stands for the model."""
    part = max(proof.differences, key=lambda name: proof.differences[name] / proof.bounds[name])
    stated = sum(value not in (None, "none") for value in asdict(proof.conversion.contract).values())
    keys = (len(proof.conversion.reconciled[group]) for group in GROUPS)
    return COLUMNS.format(proof.label, *keys, stated, f"{proof.differences[part]:.1e}", f"{proof.bounds[part]:.0e}", "" if proof.holds else f"TOO FAR: {part}")


parser = argparse.ArgumentParser(prog="python -m tests.checkpoints", description="Print the conversion table.")
parser.add_argument("-v", "--verbose", action="store_true", help="print each contract")
verbose, holds = parser.parse_args().verbose, True
print(COLUMNS.format("model", *GROUPS, "stated", "difference", "bound", "").rstrip())
for make, arguments in [*((lambda label: prove(label, recorded(label)), (label,)) for label in LABELS), *official.PROOFS]:
    proof = make(*arguments)
    holds &= proof.holds
    print(row(proof).rstrip())
    if verbose:
        print("".join(f"    {name}: {value}\n" for name, value in asdict(proof.conversion.contract).items() if value not in (None, "none")))
sys.exit(not holds)
