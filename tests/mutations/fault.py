"""What a seeded fault is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """``old`` stands once in ``file`` and becomes ``new``; one of ``tests``, separated by blanks, must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
