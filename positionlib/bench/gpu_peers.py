"""Others that compute the same on a GPU: FlexAttention for what a score function can say, and packages that may be installed.

A peer that is not installed raises ImportError when it is called, and the table says so by its name.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from positionlib.geometry import AttentionGeometry
from positionlib.terms import ClassBias, SlopeBias

Run = Callable[[], Tensor]


def flex(name: str, module: nn.Module, geometry: AttentionGeometry, qkv: tuple[Tensor, Tensor, Tensor]) -> Run:
    """FlexAttention, compiled, with the mechanism as its score function; a table is captured by the class of every offset."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (q, k, v), term = qkv, module(geometry)
    n = q.shape[2]
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=q.device) if geometry.causal else None
    score = None
    if isinstance(term, SlopeBias):
        slopes, both_ways = term.slopes.float(), term.form == "symmetric"

        def score(s, b, h, i, j):
            return s - slopes[h] * ((i - j).abs() if both_ways else (i - j))
    elif isinstance(term, ClassBias):
        table = term.table.float()
        classes = term.rule.classes(torch.arange(1 - n, n, device=q.device))

        def score(s, b, h, i, j):
            return s + table[classes[j - i + n - 1], h]

    return lambda: compiled(q, k, v, score_mod=score, block_mask=mask)


def flash_attn(module: nn.Module, geometry: AttentionGeometry, qkv: tuple[Tensor, Tensor, Tensor]) -> Run:
    """flash-attn's ALiBi, causal; it gives no gradient of the slopes."""
    q, k, v = (x.transpose(1, 2) for x in qkv)
    slopes = module(geometry).slopes.detach().float()

    def run() -> Tensor:
        from flash_attn import flash_attn_func

        return flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes).transpose(1, 2)

    return run


def flashdeberta(module: nn.Module, geometry: AttentionGeometry, qkv: tuple[Tensor, Tensor, Tensor]) -> Run:
    """flashdeberta 0.0.8, of rows that are projected already (Knowledgator/FlashDeBERTa 29614f8)."""
    term = module(geometry)
    rows = [t.detach()[None] for t in (term.pos_key, term.pos_query)]

    def run() -> Tensor:
        from flashdeberta.ops.flash_attention import flash_attention_with_disentangled

        return flash_attention_with_disentangled(*qkv, None, *rows, False, term.score_scale, term.rule.buckets, term.rule.max_distance)

    return run


PEERS: dict[str, dict[str, Callable[..., Run]]] = {"alibi": {"flash-attn": flash_attn}, "deberta": {"flashdeberta": flashdeberta}}
