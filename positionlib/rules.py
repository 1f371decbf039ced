"""Rules that several mechanisms share: frequency ladders, bucket and clip rules, ALiBi slopes.

A rule is pure arithmetic on integers and floats. Where released code disagrees with the formula, each behaviour has a
name: ``edge`` for T5 buckets, ``ladder`` for frequencies, ``convention`` for slopes.

Sources: Vaswani et al. 2017 (section 3.5); Raffel et al. 2020 (section 2.1); Shaw et al. 2018 (section 3.2); Press et al.
2022 (section 3). The released behaviours are those of the revisions in ``tests/fixtures/README.md``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from positionlib.constants import on_device
from positionlib.contract import KINDS, checked
from positionlib.errors import PositionContractError, PositionRangeError, require, require_choice, require_count

LADDERS = ("paper", "endpoint")
EDGES = ("exact", "transformers", "t5x", "article")
SLOPE_CONVENTIONS = ("paper", "mpt")


@checked
def frequency_ladder(pairs: int, d_model: int, base: float = 10_000.0, *, ladder: str = "paper") -> Float[Tensor, "pairs"]:
    """Inverse frequencies ω_i in radians a position, float64, slowest last.

    ``paper``: ω_i = base^(-2i/d_model), Vaswani et al. 2017, section 3.5.
    ``endpoint``: ω_i = base^(-i/(pairs-1)), so that the last frequency is exactly 1/base (tensor2tensor bafdc1b, fairseq).

    Raises
    ------
    PositionContractError
        base not above 1, an unknown ladder, or an ``endpoint`` ladder of fewer than two pairs (it would divide by zero).
    """
    require_count("pairs", pairs)
    require_count("d_model", d_model)
    require_choice("ladder", ladder, LADDERS)
    require(isinstance(base, (int, float)) and 1 < base < math.inf, "base", base, "a finite number above 1", "The usual base is 10000.")
    i = torch.arange(pairs, dtype=torch.float64, device="cpu")  # also where a model is built on the meta device
    if ladder == "paper":
        return torch.exp(-math.log(base) * (2.0 * i / d_model))
    require(pairs > 1, "d_model", d_model, "at least 4 for the endpoint ladder",
            "With one pair the exponent i/(pairs-1) divides by zero: use ladder='paper'.")
    return torch.exp(-math.log(base) * (i / (pairs - 1)))


@dataclass(frozen=True)
class Clip:
    """Shaw's rule: offsets beyond ±``max_distance`` share the border class. Classes 0..2·max_distance (Shaw et al. 2018, eq. 4)."""

    max_distance: int

    def __post_init__(self) -> None:
        require_count("max_distance", self.max_distance)

    @property
    def num_classes(self) -> int:
        return 2 * self.max_distance + 1

    @checked
    def classes(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Class id of each signed offset, int64; the caller has already chosen the sign."""
        return integers("offset", offset).clamp(-self.max_distance, self.max_distance) + self.max_distance


@dataclass(frozen=True)
class T5Buckets:
    """T5's map from a signed relative position (key minus query) to a bucket id.

    One direction owns B_d buckets: ``num_buckets`` when causal, half of them when bidirectional. Distances below
    E = B_d // 2 map to themselves, larger ones to E + ⌊log(n/E) / log(M/E) · (B_d - E)⌋, and everything from M = ``max_distance``
    on to B_d - 1. In the bidirectional map a key *after* the query takes the upper half. In the causal map it takes bucket 0:
    there the mask, not the bucket, hides the future.

    ``edge`` names how the logarithm is rounded at a bucket's edge. All four agree for 32 buckets to 128 and other common
    settings; for a few others they differ by one bucket in single cells.

    - ``exact``: the formula in integer arithmetic, no rounding.
    - ``transformers``: float32 logarithm, nothing added (transformers 5.24, TUPE 4c64ff7, x-transformers).
    - ``t5x``: float32 logarithm of n/E + 2⁻²³ (T5X cc342d4).
    - ``article``: float32 logarithm of n/E + 10⁻⁶.

    Raises
    ------
    PositionContractError
        an odd ``num_buckets`` when bidirectional, too few buckets, or ``max_distance`` ≤ E: the logarithm's scale would be zero
        or negative, and released code then returns buckets outside the table.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    edge: str = "exact"

    def __post_init__(self) -> None:
        require_count("num_buckets", self.num_buckets, 2)
        require_choice("edge", self.edge, EDGES)
        require(isinstance(self.bidirectional, bool), "bidirectional", self.bidirectional, "True or False",
                "Encoders are bidirectional, causal decoders are not; there is no safe default.")
        require(not (self.bidirectional and self.num_buckets % 2), "num_buckets", self.num_buckets,
                "an even number when bidirectional", "Each direction takes half of the buckets: use an even count.")
        require(self.max_exact >= 1, "num_buckets", self.num_buckets, "at least 4 when bidirectional, 2 when causal",
                "Each direction needs one exact bucket and one logarithmic bucket.")
        require_count("max_distance", self.max_distance)
        require(self.max_distance > self.max_exact, "max_distance", self.max_distance,
                f"more than max_exact = {self.max_exact}", "Raise max_distance or use fewer buckets.")
        # Found once, here: a compiled graph cannot trace a bisection.
        object.__setattr__(self, "_thresholds", _thresholds(self.per_direction, self.max_distance, self.edge))

    @property
    def num_classes(self) -> int:
        return self.num_buckets

    @property
    def per_direction(self) -> int:
        """B_d, the buckets of one direction."""
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    @property
    def max_exact(self) -> int:
        """E, the number of distances with a bucket of their own."""
        return self.per_direction // 2

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Smallest distance of bucket 1, 2, … of one direction. Two equal entries mean that a bucket is never used."""
        return self._thresholds

    @checked
    def classes(self, relative_position: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Bucket ids, int64, of ``relative_position`` = key position − query position. Integers in, integers compared: no float."""
        relative_position = integers("relative_position", relative_position)
        distance = relative_position.abs() if self.bidirectional else (-relative_position).clamp_min(0)
        edges = on_device(self.thresholds, torch.int64, relative_position.device)
        bucket = torch.bucketize(distance, edges, right=True)
        return bucket + (relative_position > 0) * self.per_direction if self.bidirectional else bucket

    def ranges(self) -> list[tuple[int, int, int | None]]:
        """(bucket, first distance, last distance or None) of one direction; unused buckets are left out."""
        first = (0, *self.thresholds)
        last = [n - 1 for n in first[1:]] + [None]
        return [(b, lo, hi) for b, (lo, hi) in enumerate(zip(first, last)) if hi is None or hi >= lo]


@checked
def t5_bucket(relative_position: Int[Tensor, "*shape"], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128,
              edge: str = "exact") -> Int[Tensor, "*shape"]:
    """Bucket ids of relative positions (key minus query). See :class:`T5Buckets`."""
    return T5Buckets(num_buckets, max_distance, bidirectional, edge).classes(relative_position)


@lru_cache(maxsize=256)
def _thresholds(per_direction: int, max_distance: int, edge: str) -> tuple[int, ...]:
    exact = per_direction // 2
    logarithmic = per_direction - exact
    first = list(range(1, exact + 1))
    if edge == "exact":
        # n belongs to log bucket m or later  ⇔  (n/E)^L ≥ (M/E)^m, compared as whole numbers; the left side grows with n.
        for m in range(1, logarithmic):
            bound = max_distance**m * exact ** (logarithmic - m)
            first.append(bisect_left(range(max_distance), bound, lo=exact, key=lambda n: n**logarithmic))
        return tuple(first)
    buckets = _float32_log_buckets(exact, logarithmic, max_distance, edge)
    for m in range(1, logarithmic):
        reached = np.flatnonzero(buckets >= m)
        first.append(exact + int(reached[0]) if len(reached) else max_distance)
    return tuple(first)


def _float32_log_buckets(exact: int, logarithmic: int, max_distance: int, edge: str) -> np.ndarray:
    """Log buckets of the distances E..M by the released expressions, rounded where they round: T5X leaves float32 after the logarithm."""
    require(max_distance <= 2**20, "max_distance", max_distance, "at most 2^20 for a released edge", "Use edge='exact'.")
    ratio = np.arange(exact, max_distance + 1, dtype=np.float32) / np.float32(exact)
    scale = math.log(max_distance / exact)
    if edge == "t5x":
        # numpy's own float32 logarithm, as T5X calls it: it is not correctly rounded, and that decides cells.
        return (np.log(ratio + np.finfo(np.float32).eps) / np.float64(scale) * logarithmic).astype(np.int64)
    # torch takes the logarithm from the processor's maths library, so the released cells differ between machines (17 cells with
    # AVX-512, 10 with AVX2, of the settings scanned in the tests). The correctly rounded logarithm gives the 17 everywhere.
    epsilon = np.float32(1e-6 if edge == "article" else 0.0)
    log = np.log((ratio + epsilon).astype(np.float64)).astype(np.float32)
    return (log / np.float32(scale) * np.float32(logarithmic)).astype(np.int64)


@checked
def alibi_slopes(heads: int, *, convention: str = "paper", bias_max: int = 8) -> Float[Tensor, "heads"]:
    """ALiBi's head slopes m_h, float64, in the order in which the heads use them.

    ``paper`` (Press et al. 2022, section 3; ofirpress/attention_with_linear_biases 4b92f28): 2^(-8(h+1)/H) for a power of two H;
    otherwise the slopes of the largest smaller power of two, then every second slope of twice that power. Not sorted.
    ``mpt`` (transformers 4.57, MPT): the next power of two, odd entries first when it was rounded up; ``bias_max`` replaces the 8.
    The two agree for ``bias_max`` = 8.

    Raises
    ------
    PositionContractError
        fewer than one head, an unknown convention, or a ``bias_max`` other than 8 under the paper's rule.
    """
    heads, bias_max = require_count("heads", heads), require_count("bias_max", bias_max)
    require_choice("convention", convention, SLOPE_CONVENTIONS)
    if convention == "paper":
        require(bias_max == 8, "bias_max", bias_max, "8 under the paper's rule", "Use convention='mpt' for another range.")
        lower = 2 ** (heads.bit_length() - 1)
        extra = _geometric_slopes(2 * lower, 8)[0::2][: heads - lower]
        slopes = _geometric_slopes(lower, 8) + extra
    else:
        upper = 2 ** (heads - 1).bit_length()
        slopes = _geometric_slopes(upper, bias_max)
        if upper != heads:
            slopes = (slopes[1::2] + slopes[0::2])[:heads]
    return torch.tensor(slopes, dtype=torch.float64, device="cpu")  # also where a model is built on the meta device


def _geometric_slopes(heads: int, bias_max: int) -> list[float]:
    return [2.0 ** (-bias_max * (h + 1) / heads) for h in range(heads)]


def integers(field: str, values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """``values`` as int64.

    Raises
    ------
    PositionContractError
        what is no tensor of integers; booleans are not counted as such. ``field`` names it in the message.
    """
    known = isinstance(values, Tensor) and values.layout == torch.strided and values.dtype in KINDS["Int"][1]
    require(known, field, values, f"an {KINDS['Int'][0]} tensor", KINDS["Int"][2])
    return values.long()


def readable(values: Tensor) -> bool:
    """Whether there are values for the host to look at: not in an empty or meta tensor, nor in a graph that is compiled or exported."""
    return not torch.compiler.is_compiling() and values.device.type != "meta" and values.numel() > 0


def check_sign(sign: object) -> str:
    """Return the offset sign when it is named; a relative mechanism has no default sign."""
    if not isinstance(sign, str) or sign not in ("key_minus_query", "query_minus_key"):
        raise PositionContractError("sign", sign, "key_minus_query or query_minus_key",
                                    "State which one the table was trained with: shapes cannot tell them apart.")
    return sign


def require_values(field: str, values: Tensor) -> None:
    """Refuse a tensor on the meta device where the answer is made of its values."""
    require(not values.is_meta, field, values, "a tensor with values", "The meta device holds shapes alone: build it on a real one.")


def require_phase(field: str, positions: Int[Tensor, "*shape"], dtype: torch.dtype = torch.float64) -> None:
    """Refuse positions that ``dtype`` no longer tells from their neighbours: their phases would be equal. 2^53 in float64, 2^24 in float32."""
    limit = round(2 / torch.finfo(dtype).eps)
    if readable(positions):
        far = max(abs(int(value)) for value in positions.aminmax())
        require(far <= limit, field, far,
                f"positions up to 2^{limit.bit_length() - 1}, which {dtype} tells apart", "Subtract a common origin, or build phases in float64.")


def require_ids(field: str, ids: Int[Tensor, "*shape"], rows: int) -> None:
    """Refuse ids that have no row in 0..rows−1: a negative one would read from the end."""
    if readable(ids):
        low, high = (int(value) for value in ids.aminmax())
        if not 0 <= low <= high < rows:
            raise PositionRangeError(field, low if low < 0 else high, f"ids in 0..{rows - 1}", "There are as many rows as the table has: nothing wraps around.")
