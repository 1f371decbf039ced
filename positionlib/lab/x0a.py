"""Failures of 0x0A: a cost counted once a layer, copies that nobody reads, tables that travel, and storage that was called nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from positionlib.errors import require
from positionlib.geometry import AttentionGeometry
from positionlib.lab.registry import Claim, Cost, Failure, register
from positionlib.layers import SelfAttention
from positionlib.mechanisms.sinusoidal import Sinusoidal, sinusoidal_table

LAYERS, ROWS, WIDTH, BATCH, LENGTH = 3, 64, 8, 2, 5


class CountAdditions(TorchDispatchMode):
    """Counts the scalar additions of every ``aten.add`` that runs inside ``with``; matrix products keep their own sums."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.scalars += out.numel() if func is torch.ops.aten.add.Tensor else 0
        return out


class Stack(nn.Module):
    """``layers`` attention layers behind one sinusoidal addition, or behind one for each layer: another architecture."""

    def __init__(self, layers: int, d_model: int, *, every_layer: bool = False) -> None:
        super().__init__()
        self.position, self.every_layer = Sinusoidal(d_model), every_layer
        maker = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(SelfAttention(d_model, 2, None, bias=False) for _ in range(layers))
        for parameter in self.parameters():
            parameter.data.normal_(generator=maker).div_(d_model**0.5)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """The stack's output for rows at positions 0..N−1."""
        geometry = AttentionGeometry.causal_self(x.shape[1])
        for index, layer in enumerate(self.layers):
            x = layer(self.position.add(x, geometry) if self.every_layer or index == 0 else x, geometry)
        return x


def rows_in(batch: int = BATCH, length: int = LENGTH, width: int = WIDTH) -> Float[Tensor, "B N D"]:
    """Random content rows, the same at each call."""
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def counted(stack: Stack, x: Float[Tensor, "B N D"]) -> int:
    """The scalar additions that run in one call of the stack."""
    with CountAdditions() as count:
        stack(x)
    return count.scalars


def _budget(per_layer: bool) -> Claim:
    claimed = BATCH * LENGTH * WIDTH * (LAYERS if per_layer else 1)
    ran = counted(Stack(LAYERS, WIDTH), rows_in())
    return Claim(f"Adding positions in {LAYERS} layers costs {claimed} additions.", claimed == ran, None if claimed == ran else {"additions that ran": ran})


def _check_budget(claim: Claim) -> None:
    require(claim.holds, "additions", claim.statement, "B · n · D, counted once",
            f"{claim.counterexample}. State rows enter before the first layer; a count for each layer belongs to a model that adds in each.")


def require_added_once(stack: Stack) -> None:
    """Refuse a stack in which more additions run than one table needs."""
    x = rows_in()
    ran = counted(stack, x)
    require(ran == x.numel(), "additions", ran, f"{x.numel()} = B · n · D, once for the stack",
            "Add the rows before the first layer; weights that were trained so give other outputs when every layer adds.")


def copies(layers: int, *, shared: bool) -> nn.ModuleList:
    """A table in a buffer of each layer, as copies of a built layer have it, or one table that all of them name."""
    table = sinusoidal_table(ROWS, WIDTH)
    holders = nn.ModuleList(nn.Module() for _ in range(layers))
    for holder in holders:
        holder.register_buffer("table", table if shared else table.clone(), persistent=False)
    return holders


def bytes_held(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers; a storage that several names share counts once."""
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*module.parameters(), *module.buffers())}
    return sum(stores.values())


def require_one_table(module: nn.Module) -> None:
    """Refuse equal buffers of a module that lie in different places."""
    first: dict[int, Tensor] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        twin = next((t for t in first.values() if t.shape == buffer.shape and torch.equal(t, buffer)), None)
        require(twin is None or twin.data_ptr() == buffer.data_ptr(), name, buffer, "the table that the module already has",
                "Build the table once and hand it to every layer: a copy holds the same numbers in other bytes.")
        first.setdefault(buffer.data_ptr(), buffer)


def _copied(shared: bool) -> Cost:
    holders = copies(LAYERS, shared=shared)
    return Cost(torch.stack([holder.table[:LENGTH] for holder in holders]), bytes_held(holders))


def moved(table: Float[Tensor, "L D"], positions: Int[Tensor, "N"], *, whole: bool) -> tuple[Float[Tensor, "N D"], Tensor]:
    """The rows of the positions, and what had to travel to the state's device for them: the whole table, or those rows."""
    if whole:
        carried = table.clone()
        return carried[positions], carried
    carried = table[positions]
    return carried, carried


def require_small_move(carried: Tensor, rows: int = LENGTH) -> None:
    """Refuse to carry more rows to a device than the call uses."""
    require(carried.shape[0] <= rows, "rows carried", carried.shape[0], f"at most the {rows} rows of the call",
            "Keep the table where the states are, or look the rows up first and carry those.")


def _carried(whole: bool) -> Cost:
    rows, carried = moved(sinusoidal_table(ROWS, WIDTH), torch.arange(LENGTH), whole=whole)
    return Cost(rows, carried.nbytes, "bytes a call")


def _summed(widened: bool) -> Cost:
    x, position = rows_in().bfloat16(), Sinusoidal(WIDTH)
    geometry = AttentionGeometry.causal_self(LENGTH)
    out = x + position(geometry).rows if widened else position.add(x, geometry)
    return Cost(out.bfloat16().float(), out.nbytes)


def require_dtype(state: Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    """Refuse a state that changed its dtype on the way."""
    require(state.dtype == dtype, "state.dtype", state.dtype, str(dtype), "Add the rows in a wide dtype and round the sum once, as StateRows.add_to does.")


def _holds_nothing(table: bool) -> Claim:
    module = copies(1, shared=True) if table else Sinusoidal(WIDTH)
    size = bytes_held(module)
    if table:
        return Claim("A sinusoidal module has no parameter, so it holds no bytes.", size == 0, {"parameters": 0, "bytes": size})
    return Claim("A sinusoidal module that computes its rows holds D/2 float64 frequencies.", size == WIDTH // 2 * 8)


def _check_storage(claim: Claim) -> None:
    require(claim.holds, "storage", claim.statement, "a count of parameters and of buffers",
            f"Count both: {claim.counterexample}. A buffer is nobody's parameter and everybody's memory.")


register(Failure(
    id="0x0A.counted-per-layer", section="0x0A", kind="false_claim", title="The additions of one table are multiplied by the number of layers",
    broken=lambda: _budget(True), right=lambda: _budget(False), guard=_check_budget, guard_name="additions that ran", source="article 0x0A"))

register(Failure(
    id="0x0A.added-in-every-layer", section="0x0A", kind="wrong_answer", title="Weights that expect one addition run in a stack that adds in every layer",
    broken=lambda: Stack(LAYERS, WIDTH, every_layer=True)(rows_in()), right=lambda: Stack(LAYERS, WIDTH)(rows_in()),
    guard=require_added_once, guard_name="additions that ran", source="article 0x0A; yangsenius/TransPose#5 (rows added in every layer, by design)",
    broken_subject=lambda: Stack(LAYERS, WIDTH, every_layer=True), right_subject=lambda: Stack(LAYERS, WIDTH)))

register(Failure(
    id="0x0A.copy-per-layer", section="0x0A", kind="excess_cost", title="Every layer holds its own copy of one table",
    broken=lambda: _copied(False), right=lambda: _copied(True), guard=require_one_table, guard_name="one table a module",
    source="meta-pytorch/torchtune#1554 (a rotary table); article 0x0A (a table on every pipeline stage)",
    broken_subject=lambda: copies(LAYERS, shared=False), right_subject=lambda: copies(LAYERS, shared=True)))

register(Failure(
    id="0x0A.whole-table-moved", section="0x0A", kind="excess_cost", title="The whole table travels to the device in every call",
    broken=lambda: _carried(True), right=lambda: _carried(False), guard=require_small_move, guard_name="rows of the call",
    source="CanReader/FastNN#19; article 0x0A (placement)",
    broken_subject=lambda: moved(sinusoidal_table(ROWS, WIDTH), torch.arange(LENGTH), whole=True)[1],
    right_subject=lambda: moved(sinusoidal_table(ROWS, WIDTH), torch.arange(LENGTH), whole=False)[1]))

register(Failure(
    id="0x0A.widened-state", section="0x0A", kind="excess_cost", title="A float32 table turns a bfloat16 state into float32",
    broken=lambda: _summed(True), right=lambda: _summed(False), guard=require_dtype, guard_name="dtype of the state", source="article 0x0A (placement: dtype)",
    broken_subject=lambda: rows_in().bfloat16() + sinusoidal_table(LENGTH, WIDTH),
    right_subject=lambda: Sinusoidal(WIDTH).add(rows_in().bfloat16(), AttentionGeometry.causal_self(LENGTH))))

register(Failure(
    id="0x0A.no-parameters-no-storage", section="0x0A", kind="false_claim", title="No parameters is read as no storage",
    broken=lambda: _holds_nothing(True), right=lambda: _holds_nothing(False), guard=_check_storage, guard_name="parameters and buffers", source="article 0x0A"))
