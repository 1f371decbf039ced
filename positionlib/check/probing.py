"""The probe on the command line: a model that a factory of the user's makes, and what to feed it.

    positionlib check --family gpt2 --probe mymodel:step                    the prompts below
    positionlib check --family gpt2 --probe mymodel:step settings.json      {"prompts": [[5, 9, 3, 7], [2, 8, 4, 6, 1]], "pad_token_id": 0}

``mymodel:step`` names a callable of the module mymodel, which is imported with the current folder before all others. It is called without
arguments and returns a step, the callable of :mod:`positionlib.check.probe`: called by the keywords input_ids, attention_mask, position_ids,
segment_ids and cache, it returns the layers' states and the cache. For a model of the transformers library this is all there is to write:

    from positionlib.check import transformers_step                         # mymodel.py
    from transformers import AutoModelForCausalLM

    def step():
        return transformers_step(AutoModelForCausalLM.from_pretrained("FOLDER").eval(), "gpt2")

Settings are arguments of :func:`positionlib.check.probe.probe`, each of which may be left out: prompts, pad_token_id, regimes, tolerance.
Naming a factory runs its code, and only the command line names one: no file that is read can. What the model prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from positionlib.check.findings import Report
from positionlib.check.probe import Step, probe, said
from positionlib.check.reading import read_settings
from positionlib.errors import PositionContractError, require

KEYWORDS = ("input_ids", "attention_mask", "position_ids", "segment_ids", "cache")
# Three lengths, of ids that every vocabulary has. What a padding column holds must not matter, so that any id will do for it.
PROMPTS = [[3, 8, 1, 12, 9, 4, 20], [7, 2, 5, 11], [6, 14, 15, 9, 22]]


def check_probe(factory: str, name: str | None, path: str | Path | None = None) -> Report:
    """Probe the model that ``factory``, a text ``module:callable``, makes, as one of the family ``name``, with the settings in a file.

    Raises
    ------
    PositionContractError
        a factory that cannot be imported, is none, fails, or makes no step; a family that is unknown or left out; settings that cannot be
        read; a model that fails on a whole prompt already.
    """
    require(name is not None, "family", name, "the family of the model", "Pass --family: it says what the model reads and how it counts.")
    settings = {"prompts": PROMPTS, "pad_token_id": 0} | ({} if path is None else read_settings(path))
    with _aside():
        step = load_step(factory)
        try:
            return probe(step, name, **settings)
        except PositionContractError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PositionContractError("step", said(error), "(layers, cache) of a whole prompt",
                                        "Return floating-point states [B, N, D] and the cache; a transformers model goes through transformers_step.") from error


@contextlib.contextmanager
def _aside() -> Iterator[None]:
    """Standard output is standard error meanwhile: for print, for what a module has kept of it, for C and for child processes."""
    sys.stdout.flush()
    own = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.__stdout__.flush()
        os.dup2(own, 1)
        os.close(own)


def load_step(factory: str) -> Step:
    """The step that ``factory`` makes; its module is imported.

    Raises
    ------
    PositionContractError
        ``probe``: a text of another form, or a module, a name or a call that fails. ``step``: what is no step.
    """
    module, _, attribute = factory.partition(":")
    require(bool(module and attribute), "probe", factory, "MODULE:CALLABLE", "Name the factory, as in mymodel:step.")
    sys.path.insert(0, str(Path.cwd()))
    made: Any = _attempt(factory, "a module that can be imported, and a name in it", lambda: pkgutil.resolve_name(factory))
    require(callable(made), "probe", factory, "a callable", "Name a function that takes no arguments and returns the step.")
    step = _attempt(factory, "a factory that is called without arguments", made)
    require(callable(step), "step", step, "a callable", f"Return the step itself, called by the keywords {', '.join(KEYWORDS)}.")
    try:
        inspect.signature(step).bind(**dict.fromkeys(KEYWORDS))
    except TypeError as error:
        raise PositionContractError("step", said(error), f"a callable by the keywords {', '.join(KEYWORDS)}", "Give it these arguments.") from None
    except ValueError:
        pass  # a callable that tells nothing of its arguments: the first call will
    return step


def _attempt(factory: str, expected: str, act: Any) -> Any:
    """What it returns; whatever a user's module raises, an exit in the middle of it too, is bad input."""
    try:
        return act()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PositionContractError("probe", f"{factory}: {said(error)}", expected,
                                    "Import and call it in Python first: the whole traceback is there.") from error
