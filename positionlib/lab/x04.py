"""Failures of 0x04: a table sliced along the wrong axis, held in the wrong way, or read in the wrong layout.

Convention of the section: states are [B, n, d], a table is [1, max_len, d], row t belongs to position t, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Failure, register
from positionlib.lab.x01 import require_coordinates
from positionlib.mechanisms.sinusoidal import Sinusoidal, convert_layout_weight, sinusoidal_table
from positionlib.permutation import hand_case

Add = Callable[[Float[Tensor, "B n D"]], Float[Tensor, "B n D"]]
PROBES = ((1, 3), (2, 3), (3, 3))  # one sequence, fewer sequences than tokens, as many
PE = sinusoidal_table(16, 4)[None]  # [1, 16, 4]


def rows_added(add: Add, batch: int, length: int, *, d_model: int = 4, batch_first: bool = True) -> Int[Tensor, "B n"]:
    """Which row of the interleaved table each token of a batch of zeros was given; -1 for a vector that is none of the first 64 rows."""
    shape = (batch, length, d_model) if batch_first else (length, batch, d_model)
    given = add(torch.zeros(shape))
    given = (given if batch_first else given.transpose(0, 1)).detach().double()
    table = sinusoidal_table(64, d_model, output_dtype=torch.float64)
    distance, row = (given[..., None, :] - table).abs().amax(-1).min(-1)
    return row.masked_fill(distance > 1e-3, -1)


def check_numbering(add: Add, *, batch_first: bool = True) -> None:
    """Feed zeros in three shapes and refuse an addition that does not give the tokens of every sequence the rows 0, 1, 2.

    Raises
    ------
    PositionContractError
        other rows, or a shape that the addition cannot take; the message names the shape.
    """
    for batch, length in PROBES:
        try:
            rows = rows_added(add, batch, length, batch_first=batch_first).tolist()
        except RuntimeError:
            rows = "an error"
        require(rows == [list(range(length))] * batch, f"rows added to {batch} x {length} tokens", rows,
                "0, 1, 2 in every sequence", "Slice the table by the length of the sequence axis.")


def check_fixed(module: nn.Module) -> None:
    """Refuse a module whose table can be trained, is saved though it can be rebuilt, is left behind by a move, or is no longer exact."""
    name, table = next((n, getattr(module, n)) for n in ("pe", "inverse_frequency") if hasattr(module, n))
    require(name not in dict(module.named_parameters()), name, "a parameter", "a buffer", "Use register_buffer: an optimizer moves a parameter.")
    require(name in dict(module.named_buffers()), name, "a plain attribute", "a buffer", "Use register_buffer: a move of the module leaves an attribute behind.")
    require(name not in module.state_dict(), name, "a key of the state dict", "no key", "Use persistent=False: what the configuration rebuilds need not be loaded.")
    if name == "pe":
        exact = sinusoidal_table(table.shape[-2], table.shape[-1])
        worst = float((table.float() - exact).abs().max())
        require(worst < 1e-6, "largest error of the table", round(worst, 4), "the table as built", "Rebuild it after a change of dtype, or keep it out of the cast.")


def check_layout(rows: Float[Tensor, "N D"], *, layout: str) -> None:
    """Refuse rows whose declared pairs are not [sine, cosine]: their squares add up to 1 in every row."""
    half = rows.shape[-1] // 2
    pairs = rows.unflatten(-1, (half, 2)) if layout == "interleaved" else rows.unflatten(-1, (2, half)).transpose(-1, -2)
    worst = float((pairs.double().square().sum(-1) - 1).abs().max())
    require(worst < 1e-5, f"sine² + cosine² of a pair, read as {layout}", f"off by {worst:.2f}", "1 in every row",
            "Convert the rows, or the weight columns behind them, with layout_permutation.")


def check_start(rows: Float[Tensor, "N D"], *, start: int) -> None:
    """Refuse rows of a chunk that are not those of the positions start, start + 1, …"""
    right = sinusoidal_table(*rows.shape, offset=start)
    require(torch.allclose(rows, right, atol=1e-5), "row 0 of the chunk", "a row of another position", f"the row of position {start}",
            "Pass the positions of the call: arange(start, start + length).")


# --- one line of code, four ways -------------------------------------------------------------------------------------

def by_sequence(x: Tensor) -> Tensor:
    return x + PE[:, : x.size(1)]


def by_batch(x: Tensor) -> Tensor:
    return x + PE[:, : x.size(0)]


def sequence_first(x: Tensor) -> Tensor:
    """Right for [n, B, d]: the table is [max_len, 1, d]."""
    return x + PE.transpose(0, 1)[: x.size(0)]


def no_colon(x: Tensor) -> Tensor:
    return x + PE[:, x.size(1)]


def _sliced(identifier: str, title: str, source: str, wrong: Add, shape: tuple[int, int], right: Add = by_sequence, batch_first: bool = True) -> None:
    zeros = torch.zeros(*shape, 4)
    register(Failure(
        id=f"0x04.{identifier}", section="0x04", kind="wrong_answer", title=title, source=source, guard_name="numbering-probe",
        broken=lambda: wrong(zeros), right=lambda: right(zeros), guard=lambda add: check_numbering(add, batch_first=batch_first),
        broken_subject=lambda: wrong, right_subject=lambda: right))


_sliced("sequence-first-table", "A table for [n, B, d] is added to [B, n, d]: all tokens of a sequence share one row",
        "cmu-l3/anlp-fall2025-code#1; also songyangco/GETNext#2; article 0x0C", sequence_first, (2, 3))
_sliced("batch-length-slice", "The table is sliced by the batch size: one sequence gets row 0 everywhere",
        "article 0x0C, shape and layout bugs", by_batch, (1, 4))
_sliced("missing-colon", "The slice lacks its colon: one row for every token", "DiffPoseTalk/DiffPoseTalk#20", no_colon, (2, 3))
_sliced("axes-exchanged", "A state [n, B, d] meets the line for [B, n, d], with n = B", "article 0x0C, mixing [seq,batch,d] and [batch,seq,d]",
        by_sequence, (3, 3), right=sequence_first, batch_first=False)


# --- four ways to hold a table ---------------------------------------------------------------------------------------

class Held(nn.Module):
    """A table [1, 8, 4] held as a parameter, as a buffer, as a buffer that is not saved, or as a plain attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        pe = sinusoidal_table(8, 4)[None]
        if how == "parameter":
            self.pe = nn.Parameter(pe)
        elif how == "attribute":
            self.pe = pe
        else:
            self.register_buffer("pe", pe, persistent=how == "buffer")

    def forward(self, x: Float[Tensor, "B n 4"]) -> Float[Tensor, "B n 4"]:
        return x + self.pe[:, : x.size(1)]


def _trained(how: str) -> Held:
    """After one step of gradient descent on a model that holds the table and a layer behind it."""
    module, layer = Held(how), nn.Linear(4, 1, bias=False)
    nn.init.ones_(layer.weight)
    step = torch.optim.SGD([*module.parameters(), *layer.parameters()], lr=0.1)
    layer(module(torch.zeros(1, 8, 4))).sum().backward()
    step.step()
    return module


def _initialised(how: str) -> Held:
    """After a model-wide loop that draws every parameter of more than one axis anew, as the Annotated Transformer's make_model has."""
    module = Held(how)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for p in module.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
    return module


def _held(identifier: str, title: str, source: str, make: Callable[[str], Held], wrong: str) -> None:
    register(Failure(
        id=f"0x04.{identifier}", section="0x04", kind="wrong_answer", title=title, source=source, guard=check_fixed, guard_name="fixed-table",
        broken=lambda: make(wrong).pe.detach(), right=lambda: make("rebuilt").pe,
        broken_subject=lambda: make(wrong), right_subject=lambda: make("rebuilt")))


_held("trainable-table", "The fixed table is a parameter: one optimizer step moves it",
      "Project-MONAI/MONAI#7564; also weihaosky/mogents#11; article 0x0C", _trained, "parameter")
_held("initialised-over", "The fixed table is a parameter: the model's initialisation replaces it by noise",
      "initialisation loop of make_model, harvardnlp/annotated-transformer", _initialised, "parameter")


def _cast(module: nn.Module) -> nn.Module:
    return module.bfloat16().float()


register(Failure(
    id="0x04.rounded-buffer", section="0x04", kind="wrong_answer", title="A cast to bfloat16 and back leaves a stored table rounded",
    broken=lambda: _cast(Held("rebuilt")).pe[0], right=lambda: _cast(Sinusoidal(4))(AttentionGeometry.encoder(8)).rows,
    guard=check_fixed, guard_name="fixed-table", source="NVIDIA-NeMo/Automodel#2549 (a buffer of rotary frequencies)",
    broken_subject=lambda: _cast(Held("rebuilt")), right_subject=lambda: _cast(Sinusoidal(4))))


def _half_model(how: str) -> Tensor:
    return nn.Sequential(Held(how), nn.Linear(4, 1)).bfloat16()(torch.zeros(1, 8, 4, dtype=torch.bfloat16))


register(Failure(
    id="0x04.missing-buffer", section="0x04", kind="late_error", title="The table is a plain attribute: a move of the model leaves it behind",
    broken=lambda: _half_model("attribute"), right=lambda: _half_model("rebuilt"), guard=check_fixed, guard_name="fixed-table",
    source="lyuwenyu/RT-DETR#677; also facebookresearch/fairseq#5213; article 0x0C",
    broken_subject=lambda: Held("attribute"), right_subject=lambda: Held("rebuilt")))


def _load(module: nn.Module) -> int:
    """Load a checkpoint that was written before the table became a saved buffer."""
    module.load_state_dict(Held("rebuilt").state_dict())
    return len(module.state_dict())


register(Failure(
    id="0x04.new-key", section="0x04", kind="late_error", title="A release saves the table: older checkpoints no longer load",
    broken=lambda: _load(Held("buffer")), right=lambda: _load(Held("rebuilt")), guard=check_fixed, guard_name="fixed-table",
    source="tatp22/multidim-positional-encoding#36 (release 6.0.2, withdrawn)",
    broken_subject=lambda: Held("buffer"), right_subject=lambda: Held("rebuilt")))


# --- layout, chunk, embedding ----------------------------------------------------------------------------------------

WEIGHT = 2.0 ** torch.arange(4)[None]  # [1, 4], made for interleaved channels


def _read(weight: Tensor) -> Tensor:
    return sinusoidal_table(4, 4, layout="concatenated") @ weight.T


register(Failure(
    id="0x04.layout-without-weights", section="0x04", kind="wrong_answer", title="The table's layout changes and the weights behind it do not",
    broken=lambda: _read(WEIGHT), right=lambda: _read(convert_layout_weight(WEIGHT, source="interleaved", target="concatenated")),
    guard=lambda subject: check_layout(subject[0], layout=subject[1]), guard_name="layout-pairs", source="article 0x04 and 0x0C, channel layout",
    broken_subject=lambda: (sinusoidal_table(4, 4, layout="concatenated"), "interleaved"),
    right_subject=lambda: (sinusoidal_table(4, 4, layout="concatenated"), "concatenated")))

register(Failure(
    id="0x04.chunk-restart", section="0x04", kind="wrong_answer", title="Decoding goes on after a prompt, and its step counter starts at 0",
    broken=lambda: sinusoidal_table(3, 8), right=lambda: sinusoidal_table(3, 8, offset=5), guard=lambda rows: check_start(rows, start=5),
    guard_name="chunk-start", source="OpenNMT/OpenNMT-tf#498"))


def _embedded(positioned: bool) -> Callable[[Tensor], Tensor]:
    geometry, position = AttentionGeometry.encoder(4), Sinusoidal(4, output_dtype=torch.float64)
    return lambda rows: position.add(rows[None], geometry)[0] if positioned else rows


register(Failure(
    id="0x04.embeddings-only", section="0x04", kind="wrong_answer", title="The embedding is called without the position module behind it",
    broken=lambda: _embedded(False)(hand_case()[0]), right=lambda: _embedded(True)(hand_case()[0]), guard=require_coordinates,
    guard_name="shuffle test of the embedding", source="article 0x0C, calling only Embeddings",
    broken_subject=lambda: _embedded(False), right_subject=lambda: _embedded(True)))
