"""T5: one learned number a head and bucket, s_ij + b_h(bucket(j − i)) (Raffel et al. 2020, section 2.1).

The bucket rule never enters the kernel: a bucket does not change beyond ``span``, so the host lays the table out by clamped
offset, TABLE [H, 2·span + 1], and the kernel only loads. Index 0 is offset −span: the key far before the query. The first and the last entry
stand for all offsets beyond, so nearly every pair of a long sequence has one of the two: their gradients are two row sums; ``bands`` finds
those of the entries between.
"""

import triton
import triton.language as tl


@triton.jit
def t5(s, offset, head, TABLE, span):
    """s_ij + TABLE[h, clamp(j − i, −span, span) + span]."""
    index = tl.minimum(tl.maximum(offset, -span), span).to(tl.int32) + span
    return s + tl.load(TABLE + head * (2 * span + 1) + index)


@triton.jit
def t5_fold(ds, offset, span):
    """Row sums of ds_ij over the keys at −span and before, and over those at span and after."""
    return tl.sum(tl.where(offset <= -span, ds, 0.0), 1), tl.sum(tl.where(offset >= span, ds, 0.0), 1)
