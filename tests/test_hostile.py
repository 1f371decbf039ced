"""Whatever stands in the place of an argument, a public function gives an answer or a PositionContractError, and nothing else."""

import importlib
import inspect

import numpy as np
import pytest
import torch

import positionlib as pl
from positionlib import mechanisms
from tests import hostile_axes, hostile_maps, hostile_sharding
from tests.hostile import CALLS as CORE
from tests.hostile import others

MODULES = ["attention", "checkpoints.conversion", "checkpoints.files", "checkpoints.maps", "checkpoints.migration", "layers", "padding", "permutation",
           "rotation", "rules", "terms", "transport", "sharding.partition", "sharding.layout", "sharding.modules", "sharding.checkpoints",
           *(f"mechanisms.{name}" for name in (
    "alibi", "deberta", "graph", "grid", "grid_bias", "grid_document", "grid_resize", "grid_sine", "learned", "naive", "naive_properties", "nope", "rotary",
    "shaw", "shaw_variants", "sinusoidal", "sinusoidal_algebra", "sinusoidal_precision", "t5", "time2vec", "transformer_xl", "tupe"))]
CALLS = CORE | hostile_axes.CALLS | hostile_maps.CALLS | hostile_sharding.CALLS
ARGUMENTS = [(name, argument) for name, (_, sound) in CALLS.items() for argument in sound]


def test_every_public_function_and_module_has_a_sound_call():
    wanted = set(mechanisms.__all__)
    for module in (importlib.import_module(f"positionlib.{name}") for name in MODULES):
        own = {name for name, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
        wanted |= {name for name in own if not name.startswith(("_", "require", "readable", "check_"))}  # these are what refuses
    assert {name.split()[0].split(".")[0].removesuffix("()") for name in CALLS} >= wanted
    for call, sound in CALLS.values():
        call(**sound)


@pytest.mark.parametrize("name, argument", ARGUMENTS, ids=lambda value: value)
@pytest.mark.filterwarnings("ignore")
def test_an_argument_gives_an_answer_or_a_refusal(name, argument):
    call, sound = CALLS[name]
    ends = {}
    for label, value in others(argument, sound[argument]).items():
        try:
            call(**{**sound, argument: value})
        except pl.PositionContractError as refusal:
            assert refusal.field and refusal.expected and refusal.remedy and str(refusal)
        except Exception as error:
            ends[label] = f"{type(error).__name__}: {error}"
    assert ends == {}


@pytest.mark.parametrize("name", [name for name, (_, sound) in CALLS.items() if any(isinstance(v, torch.Tensor) for v in sound.values())])
def test_strides_and_integer_types_change_no_answer(name):
    call, sound = seeded(CALLS[name][0]), CALLS[name][1]
    want = leaves(call(**sound))
    for argument, t in ((argument, t) for argument, t in sound.items() if isinstance(t, torch.Tensor)):
        same = [torch.stack((t, t), -1)[..., 0], t.mT.contiguous().mT if t.ndim > 1 else t.clone()]
        if t.dtype == torch.int64:
            same += [t.to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32) if torch.equal(t.to(dtype).long(), t)]
        for other in same:
            got = leaves(call(**{**sound, argument: other}))
            assert len(got) == len(want) and all(torch.allclose(a, b, atol=1e-6, equal_nan=True) for a, b in zip(got, want)), (argument, other.dtype)


def seeded(call):
    """The call with the same new parameters every time."""
    def run(**arguments):
        torch.manual_seed(0)
        return call(**arguments)

    return run


def leaves(answer) -> list[torch.Tensor]:
    """The tensors of an answer, as float64."""
    if isinstance(answer, torch.Tensor):
        return [answer.detach().double()]
    if isinstance(answer, (tuple, list)):
        return [leaf for part in answer for leaf in leaves(part)]
    return [leaf for part in getattr(answer, "__dict__", {}).values() for leaf in leaves(part)]


@pytest.mark.parametrize("name, argument", [(name, argument) for name, argument in ARGUMENTS if isinstance(CALLS[name][1][argument], list)])
def test_a_list_may_be_a_tuple_and_a_list_of_numbers_an_array(name, argument):
    call, sound = seeded(CALLS[name][0]), CALLS[name][1]
    values, want = sound[argument], call(**sound)
    numbers = all(isinstance(value, (int, float)) for value in values)
    for other in [tuple(values), *([np.array(values), torch.tensor(values)] if numbers else [])]:
        got = call(**{**sound, argument: other})
        assert all(torch.equal(a, b) for a, b in zip(leaves(got), leaves(want))) and type(got) is type(want)


@pytest.mark.parametrize("ids", [torch.int8, torch.uint8])
def test_a_difference_of_bytes_does_not_wrap_around(ids):
    query, key = torch.tensor([0, 100]), torch.tensor([120, 0])
    want = pl.ALiBi(1, form="symmetric")(pl.AttentionGeometry(query, key)).materialize(query, key)
    assert torch.equal(pl.ALiBi(1, form="symmetric")(pl.AttentionGeometry(query, key)).materialize(query.to(ids), key.to(ids)), want)
    assert want[0, 0, 0, 0] == -120 * 2.0**-8
