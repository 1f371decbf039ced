"""What the registry finds wrong with a case is what a test of that case asserts."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from positionlib.errors import PositionContractError


@contextmanager
def refusals_fail() -> Iterator[None]:
    """A case that does not show its kind fails the test; every other error ends it."""
    try:
        yield
    except PositionContractError as refusal:
        if re.match(r"0x\w+\.[\w-]+ \(", refusal.field):
            pytest.fail(str(refusal))
        raise
