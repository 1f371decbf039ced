"""The failure lab: every failure as a registered case with its guard, one file a section (``x02a.py`` for 0x02A).

:mod:`positionlib.lab.article` ties the article's list of failures, and its failure-to-guard table, to these cases.
"""

from positionlib.lab.registry import KINDS, Claim, Cost, Demonstration, Failure, cases, get, register, verify

__all__ = ["KINDS", "Claim", "Cost", "Demonstration", "Failure", "cases", "get", "register", "verify"]
