"""The failure lab: every failure as a registered case with its guard, one file a section (``x02a.py`` for 0x02A)."""

from positionlib.lab.registry import KINDS, Claim, Cost, Demonstration, Failure, cases, get, register, verify

__all__ = ["KINDS", "Claim", "Cost", "Demonstration", "Failure", "cases", "get", "register", "verify"]
