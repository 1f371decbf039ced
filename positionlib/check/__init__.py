"""The geometry checker: what geometry does this call feed, and do prefill and decode agree?

``check_file``, ``check_arrays``, ``check_calls`` and ``check_manifest`` look at a call, ``probe`` and ``check_probe`` at a model. On the command
line: ``positionlib check --family gpt2 call.json``, ``positionlib check --family gpt2 --probe mymodel:step``, or ``python -m positionlib.check``.
"""

from importlib import import_module as _import_module

from positionlib.check.arrays import check_arrays, check_calls
from positionlib.check.families import FAMILIES, Family
from positionlib.check.findings import REMEDIES, Finding, Report
from positionlib.check.probe import REGIMES, probe, transformers_step
from positionlib.check.probing import check_probe
from positionlib.check.reading import check_file

__all__ = ["FAMILIES", "REGIMES", "REMEDIES", "Family", "Finding", "Report", "check_arrays", "check_calls", "check_file", "check_manifest",
           "check_probe", "probe", "transformers_step"]


def __getattr__(name: str):
    if name != "check_manifest":
        raise AttributeError(f"module 'positionlib.check' has no attribute {name!r}")
    return _import_module("positionlib.check.manifest").check_manifest  # needs the schema library
