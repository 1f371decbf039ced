"""Exercises of 0x0A: bytes of a table, bytes of its training, additions of a call, and storage that no parameter count sees."""

from __future__ import annotations

import torch
from torch import nn

from positionlib.exercises.answers import Wrong, call, expect_close
from positionlib.exercises.registry import Exercise, register

register(Exercise(
    id="0x0A.1", kind="recall", minutes=3,
    prompt="An encoder-decoder has a learned table for its source and another for its target, each of 2,048 rows and width 1,024, served in bfloat16. "
           "How many MiB do the two hold together?",
    hint="Rows times width, two bytes each, two tables; one MiB is 2^20 bytes.", solution=8.0,
    check=lambda answer: expect_close(answer, 8.0, atol=0.01, mistakes=[
        (4.0, "That is one table. Source and target own one each."),
        (16.0, "You counted four bytes a number. bfloat16 has two."),
        (2.0, "That is one table's numbers in millions of 2^20; each of them has two bytes, and there are two tables."),
        (8.39, "Those are millions of bytes (MB). One MiB is 2^20 = 1,048,576 bytes."),
        (64.0, "That is training with Adam in float32. The question asks for serving.")]),
    wrong_answers={"one": (4.0, "one table"), "float32": (16.0, "four bytes"), "numbers": (2.0, "each of them has two bytes"),
                   "MB": (8.389, "millions of bytes"), "training": (64.0, "training")},
    praise="2^11 · 2^10 · 2 bytes · 2 tables = 2^23 bytes."))


def training_bytes(rows: int, width: int, moments: int) -> int:
    return rows * width * (2 + 4 + 4 + 4 * moments)


def _bytes(per_number):
    return lambda rows, width, moments: rows * width * per_number(moments)


_TRAINING = {
    "no copy": (lambda m: 8 + 4 * m, "You left out the bfloat16 copy that the forward pass reads: 2 bytes more for each number."),
    "no gradient": (lambda m: 6 + 4 * m, "The gradient is missing: a table's is dense, as large as the weight."),
    "narrow moments": (lambda m: 10 + 2 * m, "Your moments have 2 bytes. They are kept in float32."),
    "one moment": (lambda m: 14, "You counted one moment whatever `moments` says. SGD keeps none, momentum one, Adam two."),
    "two moments": (lambda m: 18, "You counted Adam's two moments whatever `moments` says."),
    "numbers": (lambda m: 1, "Those are numbers, not bytes."),
}


def _check_training(answer) -> None:
    arguments = [(96, 40, 0), (96, 40, 1), (96, 40, 2)]
    got = [call(answer, *a) for a in arguments]
    expect_close(got, [training_bytes(*a) for a in arguments],
                 mistakes=[([_bytes(per)(*a) for a in arguments], why) for per, why in _TRAINING.values()])


register(Exercise(
    id="0x0A.2", kind="build", minutes=6,
    prompt="Write `training_bytes(rows, width, moments)`: the bytes that one learned table holds while it is trained in mixed precision: a bfloat16 copy "
           "of the weight, and in float32 the weight, its dense gradient and `moments` moments (SGD 0, momentum 1, Adam 2).",
    hint="Bytes for one number first: 2, and 4 for each float32 thing.", check=_check_training, solution=training_bytes,
    wrong_answers={name: (_bytes(per), why.split(".")[0][:40]) for name, (per, why) in _TRAINING.items()}))


def additions(batch: int, length: int, width: int, layers: int, every_layer: bool) -> int:
    return batch * length * width * (layers if every_layer else 1)


def _always_layers(batch, length, width, layers, every_layer):
    return batch * length * width * layers


def _never_layers(batch, length, width, layers, every_layer):
    return batch * length * width


def _no_batch(batch, length, width, layers, every_layer):
    return length * width * (layers if every_layer else 1)


def _square(batch, length, width, layers, every_layer):
    return batch * length * length * (layers if every_layer else 1)


def _check_additions(answer) -> None:
    arguments = [(3, 20, 48, 6, False), (3, 20, 48, 6, True)]
    got = [call(answer, *a) for a in arguments]
    why = ((_always_layers, "You count layers even when the rows are added once. Depth does not enter then."),
           (_never_layers, "A model that adds in every layer pays in every layer."),
           (_no_batch, "The rows are shared by the batch, but each sequence's state is its own: B · n · D sums."),
           (_square, "n · n belongs to scores. Rows are added to a state [B, n, D]."))
    expect_close(got, [additions(*a) for a in arguments], mistakes=[([wrong(*a) for a in arguments], text) for wrong, text in why])


register(Exercise(
    id="0x0A.3", kind="build", minutes=4,
    prompt="Write `additions(batch, length, width, layers, every_layer)`: the scalar additions of positions in one call, for a model that adds its rows once "
           "before the first layer, or (`every_layer`) once in every layer, as DETR's encoder does for its queries and keys.",
    hint="One scalar sum for each number of the state, each time that rows are added.", check=_check_additions, solution=additions,
    wrong_answers={"always": (_always_layers, "Depth does not enter"), "never": (_never_layers, "pays in every layer"),
                   "batch": (_no_batch, "each sequence's state"), "square": (_square, "belongs to scores")}))


def quiet_table(rows: int, width: int) -> nn.Module:
    module = nn.Module()
    module.register_buffer("table", torch.zeros(rows, width), persistent=False)
    return module


def _persistent(rows, width):
    module = nn.Module()
    module.register_buffer("table", torch.zeros(rows, width))
    return module


def _parameter(rows, width):
    module = nn.Module()
    module.table = nn.Parameter(torch.zeros(rows, width))
    return module


def _attribute(rows, width):
    module = nn.Module()
    module.table = torch.zeros(rows, width)
    return module


def _expanded(rows, width):
    module = nn.Module()
    module.register_buffer("table", torch.zeros(1, width).expand(rows, width), persistent=False)
    return module


def _check_quiet(answer) -> None:
    rows, width = 30, 12
    module = call(answer, rows, width)
    if not isinstance(module, nn.Module):
        raise Wrong("Return a torch.nn.Module.")
    if any(True for _ in module.parameters()):
        raise Wrong("The reviewer counts parameters, and finds yours.")
    if module.state_dict():
        raise Wrong("The checkpoint gives it away: a persistent buffer is saved.")
    held = {b.untyped_storage().data_ptr(): b.untyped_storage().nbytes() for b in module.buffers()}
    if not held:
        raise Wrong("No buffer holds a table. A plain attribute stays behind when the module moves to another device: register it.")
    if sum(held.values()) < rows * width * 4:
        raise Wrong(f"The module holds {sum(held.values())} bytes, fewer than {rows} · {width} float32 numbers need: an expanded view stores one row.")


register(Exercise(
    id="0x0A.4", kind="break", minutes=5,
    prompt="A reviewer's rule: a module stores nothing if it has no parameters and its state_dict is empty. Write `quiet_table(rows, width)`: a module that "
           "passes, moves with `.to(...)`, and still holds rows · width float32 numbers. What should the rule count instead?",
    hint="register_buffer has a switch for the checkpoint.", check=_check_quiet, solution=quiet_table,
    wrong_answers={"persistent": (_persistent, "checkpoint gives it away"), "parameter": (_parameter, "counts parameters"),
                   "attribute": (_attribute, "plain attribute"), "expanded": (_expanded, "stores one row")},
    praise="The rule must count storages: those of parameters and of all buffers, saved or not."))
