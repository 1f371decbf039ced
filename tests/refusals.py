"""What every refusal must say."""

from collections.abc import Callable

import pytest

from positionlib.errors import PositionContractError


def refused(build: Callable, field: str) -> PositionContractError:
    """The refusal that ``build()`` raises: it names this field, what was expected, and a remedy."""
    with pytest.raises(PositionContractError) as caught:
        build()
    assert caught.value.field == field, str(caught.value)
    assert caught.value.expected and caught.value.remedy
    return caught.value
