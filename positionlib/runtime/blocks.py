"""Attention on the CPU in blocks of queries: nothing of size Q·K stays alive, forward or backward.

``run_attention`` computes the runs of a plan. The scores of a block are sums of matrix products, with nothing gathered: queries by keys;
queries by the rows of the block's stretch of offsets, read along diagonals; keys by the same, read along the other side's diagonals.
The backward pass makes the weights of a block again and spreads gradients over the same diagonals. It has no derivative of its own
and says so.

``in_blocks`` runs the reference on a few queries at a time, for rows that are no run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from positionlib.errors import UnsupportedPositionContract
from positionlib.forms import ByOffset
from positionlib.runtime.runs import Plan

BUDGET = 2**20  # scores of one block: 4 MB in float32
ROWS, TILE = 256, 64  # queries of a block and keys of a tile: k · key_rows costs (ROWS + TILE) / ROWS of q · k
CAUSAL_ROWS = 512  # queries of a causal block that torch computes: it reads no key after them
TORCH_BUDGET = 2**21  # pairs a thread that torch's own attention is given at once: it stores none, but takes a copy of the queries and makes one of the output


def run_attention(plan: Plan, q: Float[Tensor, "B H Q D"], k: Float[Tensor, "B H K D"], v: Float[Tensor, "B H K Dv"], scale: float, *,
                  sdpa: bool) -> Float[Tensor, "B H Q Dv"]:
    """The rows of the plan's runs; every other row is zero. ``sdpa``: torch's own attention makes them, for a term without rows."""
    term, content = plan.by_offset, None
    if not term.content:
        content = torch.zeros_like(q)
    elif term.content_bias is not None:
        content = q + term.content_bias[:, None]
    bias = None if term.bias is None else term.bias.contiguous()[..., None]  # a stride along the keys doubles the kernel's time
    # Autograd frees what it saved after a backward pass, not what hangs on the plan.
    bare = replace(plan, by_offset=ByOffset())
    return _Runs.apply(bare, scale, sdpa, content, q, k, v, bias, term.query_rows, term.key_rows, term.value_rows)


def in_blocks(reference: Callable[[int, int], Tensor], start: int, stop: int, pairs: int) -> Float[Tensor, "B H Q Dv"]:
    """reference(first, end) over query rows start..stop−1, as many at once as fit when each has ``pairs`` scores; made again for gradients."""
    step = rows_at_once(pairs)
    bounds = [(s.start, s.stop) for s in _steps(start, stop, step)] or [(start, stop)]
    if not torch.is_grad_enabled():
        return torch.cat([reference(*b) for b in bounds], 2)
    return torch.cat([checkpoint(reference, *b, use_reentrant=False, preserve_rng_state=False) for b in bounds], 2)


def rows_at_once(pairs: int) -> int:
    """Query rows of one block of the reference, when each has ``pairs`` scores over all heads and batch rows."""
    return max(1, BUDGET // max(1, pairs))


@dataclass(frozen=True)
class _Block:
    """Some queries of a run with some batch rows and heads. Taken last first, query i and key j read place ``place + i + j`` of a line.

    Causality hides i + j ≥ ``hidden``.
    """

    batch: slice
    heads: slice
    queries: slice
    keys: slice
    place: int
    hidden: int | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    def of_queries(self, x: Float[Tensor, "B H Q D"]) -> Float[Tensor, "b h n D"]:
        return x[self.batch, self.heads, self.queries].flip(2)

    def of_keys(self, x: Float[Tensor, "B H K D"]) -> Float[Tensor, "b h m D"]:
        return x[self.batch, self.heads, self.keys]

    def of_line(self, rows: Float[Tensor, "*H W D"]) -> Float[Tensor, "*h w D"]:
        places = slice(self.place, self.place + sum(self.shape) - 1)
        return rows[places] if rows.ndim == 2 else rows[self.heads, places]

    def bias(self, bias: Float[Tensor, "H W 1"] | None, like: Tensor) -> Float[Tensor, "1|h n m"] | None:
        """The block's bias as a view of one line a head, −∞ where causality hides; None where there is nothing to add."""
        n, m = self.shape
        hides = self.hidden is not None and self.hidden < n + m - 1
        if bias is None and not hides:
            return None
        line = like.new_zeros(1, n + m - 1) if bias is None else self.of_line(bias)[..., 0]
        if hides:
            line = line.masked_fill(torch.arange(n + m - 1, device=line.device) >= self.hidden, float("-inf"))
        return _along(line[:, None].expand(-1, n, -1), m)


def _blocks(plan: Plan, batch: int, heads: int, budget: int, rows: int) -> Iterator[_Block]:
    """Blocks that cover every query which sees a key, each with the keys up to its last visible one."""
    for run in plan.runs if heads else ():
        queries, keys = (s.stop - s.start for s in (run.queries, run.keys))
        seen = -run.first + 1 if plan.causal else queries + keys  # i + j below it is visible
        step = max(1, min(rows, budget // keys))
        at_once = max(1, budget // (min(step, queries) * keys))  # heads of all batch rows
        for b in _steps(*run.batch.indices(batch)[:2], max(1, at_once // heads)):
            for h in _steps(0, heads, min(heads, at_once)):
                for i in _steps(0, min(queries, seen), step):
                    yield _Block(b, h, slice(run.queries.stop - i.stop, run.queries.stop - i.start),
                                 slice(run.keys.start, run.keys.start + min(keys, seen - i.start)),
                                 run.first - plan.low + i.start, seen - i.start if plan.causal else None)


def _steps(start: int, stop: int, step: int) -> list[slice]:
    return [slice(a, min(a + step, stop)) for a in range(start, stop, step)]


class _Runs(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, plan, scale, sdpa, *tensors):
        ctx.plan, ctx.scale = plan, scale
        ctx.save_for_backward(*tensors)
        # Under no_grad a view still says that its base requires a gradient, and torch's kernel refuses such a mask.
        tensors = [t if t is None else t.detach() for t in tensors]
        content, q, k, v, bias, _, _, value_rows = tensors
        (batch, heads, queries), width = q.shape[:3], v.shape[3]
        # Heads side by side, as the next projection reads them; no transposed view, since autograd lets nobody write into one.
        out = v.new_empty_strided((batch, heads, queries, width), (queries * heads * width, width, heads * width, 1)).zero_()
        size = (TORCH_BUDGET * torch.get_num_threads(), CAUSAL_ROWS if plan.causal else 2**62) if sdpa else (BUDGET, ROWS)
        for block in _blocks(plan, batch, heads, *size):
            if sdpa:
                mask = block.bias(bias, q)
                rows = scaled_dot_product_attention(block.of_queries(q), block.of_keys(k), block.of_keys(v), scale=scale,
                                                    attn_mask=None if mask is None else mask[None])
            else:
                weights = _weights(block, scale, *tensors)
                rows = weights @ block.of_keys(v)
                if value_rows is not None:
                    rows += _Line(block.of_line(value_rows), *block.shape).sums(_spread(weights)[:, :, None])[:, :, 0]
            out[block.batch, block.heads, block.queries] = rows.flip(2)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # a caller's autocast would make the weights again in half precision
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # autograd would take the gradients for constants, without a word
            raise UnsupportedPositionContract("create_graph", True, "False: this path's backward pass has no derivative of its own",
                                              "For second derivatives attend with backend='eager'.", frozenset({"second derivatives"}))
        if torch._C._functorch.is_legacy_batchedtensor(grad_out) or torch._C._functorch.peek_interpreter_stack() is not None:
            raise UnsupportedPositionContract("is_grads_batched", True, "False: this path's backward pass adds one gradient up in place",
                                              "For a batch of gradients attend with backend='eager'.", frozenset({"batched gradients"}))
        tensors, scale = ctx.saved_tensors, ctx.scale
        content, q, k, v, bias, query_rows, key_rows, value_rows = tensors
        wanted = ctx.needs_input_grad[3:]
        grads = [torch.zeros_like(t, memory_format=torch.contiguous_format) if w or n < 4 and t is not None else None
                 for n, (t, w) in enumerate(zip(tensors, wanted))]
        d_content, d_q, d_k, d_v, d_bias, d_query_rows, d_key_rows, d_value_rows = grads
        for block in _blocks(ctx.plan, *q.shape[:2], BUDGET, ROWS):
            weights, d_rows = _weights(block, scale, *tensors), block.of_queries(grad_out)
            d_weights = d_rows @ block.of_keys(v).mT
            block.of_keys(d_v).add_(weights.mT @ d_rows)
            if value_rows is not None:
                line, d = _Line(block.of_line(value_rows), *block.shape), d_rows[:, :, None]
                d_weights += line.products(d)[:, :, 0]
                if d_value_rows is not None:
                    line.collect(_spread(weights)[:, :, None], d, block.of_line(d_value_rows))
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, q.dtype)
            del weights, d_weights
            d_queries, keys = scale * (d_scores @ block.of_keys(k)), block.of_keys(d_k)
            keys.add_(d_scores.mT @ block.of_queries(q if content is None else content), alpha=scale)
            at = (block.batch, block.heads, block.queries)
            (d_q if content is None else d_content)[at] += d_queries.flip(2)
            if d_bias is not None or query_rows is not None:
                wide = _spread(d_scores)
            if d_bias is not None:
                block.of_line(d_bias)[..., 0] += wide.sum((0, 2))
            if query_rows is not None:
                line = _Line(block.of_line(query_rows), *block.shape)
                d_q[at] += scale * line.sums(wide[:, :, None])[:, :, 0].flip(2)
                if d_query_rows is not None:
                    line.collect(wide[:, :, None], scale * block.of_queries(q)[:, :, None], block.of_line(d_query_rows))
            if key_rows is not None:
                for tiles, places, n in _tiles(block):
                    line, wide = _Line(block.of_line(key_rows)[..., places, :], n, block.shape[0]), _spread(_by_tile(d_scores[..., tiles], n))
                    keys[:, :, tiles] += scale * line.sums(wide).flatten(2, 3)
                    if d_key_rows is not None:
                        line.collect(wide, scale * block.of_keys(k)[:, :, tiles].unflatten(2, (-1, n)), block.of_line(d_key_rows)[..., places, :])
        return None, None, None, *grads


def _weights(block: _Block, scale: float, content, q, k, v, bias, query_rows, key_rows, value_rows) -> Float[Tensor, "b h n m"]:
    """Softmax of the block's scores. A weight below the smallest normal number is 0: products of such numbers are many times slower."""
    queries, keys = scale * block.of_queries(q), block.of_keys(k)
    scores = (queries if content is None else scale * block.of_queries(content)) @ keys.mT
    if query_rows is not None:
        scores += _Line(block.of_line(query_rows), *block.shape).products(queries[:, :, None])[:, :, 0]
    if key_rows is not None:
        for tiles, places, n in _tiles(block):
            line = _Line(block.of_line(key_rows)[..., places, :], n, block.shape[0])
            _by_tile(scores[..., tiles], n).add_(line.products(keys[:, :, tiles].unflatten(2, (-1, n))), alpha=scale)
    mask = block.bias(bias, q)
    weights = torch.softmax(scores if mask is None else scores.add_(mask), -1)
    return torch.nn.functional.threshold_(weights, torch.finfo(q.dtype).tiny, 0.0)


def _tiles(block: _Block) -> Iterator[tuple[slice, slice, int]]:
    """(keys, places, keys of a tile): the whole tiles at once, then what is left of them."""
    n, m = block.shape
    whole = m // TILE * TILE
    for start, stop, size in ((0, whole, TILE), (whole, m, m - whole)):
        if start < stop:
            yield slice(start, stop), slice(start, stop + n - 1), size


def _by_tile(scores: Float[Tensor, "b h n m"], size: int) -> Float[Tensor, "b h t size n"]:
    return scores.unflatten(3, (-1, size)).permute(0, 1, 3, 4, 2)


class _Line:
    """Rows along a line as t tiles read them: row i of tile c and column j read place ``c·n + i + j``. Without H they serve all heads."""

    def __init__(self, rows: Float[Tensor, "*h W D"], n: int, m: int) -> None:
        self.shared, self.n, self.m = rows.ndim == 2, n, m
        self.windows = rows.unfold(-2, n + m - 1, n).flatten(0, -3)  # [h·t, D, n + m − 1], or [t, ..]

    def products(self, x: Float[Tensor, "b h t n D"]) -> Float[Tensor, "b h t n m"]:
        """x_i · row of (i, j)."""
        return _along(self._unfold(self._fold(x) @ self.windows, x.shape), self.m)

    def sums(self, wide: Float[Tensor, "b h t n w"]) -> Float[Tensor, "b h t n D"]:
        """Σ_j weight_ij · row of (i, j), of spread weights."""
        return self._unfold(self._fold(wide) @ self.windows.mT, wide.shape)

    def collect(self, wide: Float[Tensor, "b h t n w"], x: Float[Tensor, "b h t n D"], into: Float[Tensor, "*h W D"]) -> None:
        """Add weight_ij · x_i to the row of (i, j)."""
        found = self._fold(wide).mT @ self._fold(x)
        for tile, part in enumerate(found.unflatten(0, (*into.shape[:-2], -1)).unbind(-3)):
            into[..., tile * self.n : tile * self.n + part.shape[-2], :] += part

    def _fold(self, x: Tensor) -> Tensor:
        b, h, t, n, c = x.shape
        return x.permute(2, 0, 1, 3, 4).reshape(t, -1, c) if self.shared else x.permute(1, 2, 0, 3, 4).reshape(h * t, -1, c)

    def _unfold(self, x: Tensor, shape: torch.Size) -> Tensor:
        b, h, t, n, _ = shape
        return x.view(t, b, h, n, -1).permute(1, 2, 0, 3, 4) if self.shared else x.view(h, t, b, n, -1).permute(2, 0, 1, 3, 4)


def _along(x: Float[Tensor, "*B n w"], m: int) -> Float[Tensor, "*B n m"]:
    """The view whose entry [i, j] is x[i, i + j]."""
    *lead, row, place = x.stride()
    return x.as_strided((*x.shape[:-1], m), (*lead, row + place, place))


def _spread(x: Float[Tensor, "*B n m"]) -> Float[Tensor, "*B n w"]:
    """Zeros with x[i, j] at [i, i + j]: what sums along the diagonals of x once its rows are added."""
    *lead, n, m = x.shape
    wide = x.new_zeros(*lead, n, n + m - 1)
    _along(wide, m).copy_(x)
    return wide
