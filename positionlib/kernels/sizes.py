"""Tile and pipeline sizes of the kernels, chosen so that what ``compile`` reports for sm_80 and sm_90 stays within its bars."""

from __future__ import annotations

from positionlib.kernels.admission import interpreted


def tile_sizes(width: int, queries: int, element_size: int, crowded: bool, parted: bool) -> dict[str, int]:
    """Sizes of ``tile``.

    ``crowded``: a program reads numbers by pair besides the scores, and their addresses take registers too. ``parted``: rotary turns neighbours,
    which it parts in registers.
    """
    block_d = _block_d(width)
    decoding = queries <= 16  # one short tile of queries, the smallest that a tensor core takes
    if element_size > 2:  # full float32 precision runs without tensor cores: small tiles, to stay in registers
        m, n, warps, stages = (32, 32, 8, 2) if block_d <= 64 and not crowded else (16, 16, 8, 2 if block_d > 64 else 1)
    elif crowded:
        m, n, warps, stages = 64 if block_d <= 64 and _warp_groups() else 32, 32, 8, 3
    elif parted and block_d <= 128 and not _warp_groups():
        m, n, warps, stages = 128 if block_d <= 64 else 64, 32, 8, 3
    elif block_d <= 64:
        m, n, warps, stages = 128, 64, 8, 3
    elif block_d <= 128:
        m, n, warps, stages = 128, 32, 8, 3
    else:
        m, n, warps, stages = 64, 32, 8, 2
    if decoding:
        m, n, warps, stages = (16, 32 if block_d <= 64 else 16, 8, 3) if element_size > 2 else (16, 32, 4, 3)
    return _sizes(m, n, block_d, warps, stages) | ring(m, n)


def query_tile_sizes(width: int, element_size: int, crowded: bool, turned: bool) -> dict[str, int]:
    """As :func:`tile_sizes`, of ``query_gradients``; ``turned`` where rotary makes the rows of q and k in registers."""
    block_d = _block_d(width)
    if element_size > 2:
        m, n, warps, stages = (32, 32, 8, 2) if block_d <= 64 else (16, 16, 8, 2)
    elif crowded:
        m, n, warps, stages = 32, 32 if block_d <= 64 else 16, 8, 1
    elif block_d <= 64:
        m, n, warps, stages = 128, 64 if _warp_groups() else 32, 8, 3
    elif block_d <= 128:
        m, n, warps, stages = 128 if _warp_groups() else 32 if turned else 64, 32, 8, 2
    else:
        m, n, warps, stages = 32, 32, 8, 1
    return _sizes(m, n, block_d, warps, stages) | ring(m, n)


def key_tile_sizes(width: int, element_size: int, crowded: bool, turned: bool, by_key: bool) -> dict[str, int]:
    """As :func:`query_tile_sizes`, of ``key_gradients``; ``by_key`` where a key has numbers by class, whose gradients are summed here."""
    block_d = _block_d(width)
    if element_size > 2:
        m, n, warps, stages = 16, 32 if block_d <= 64 else 16, 8, 1 if turned else 2
    elif crowded:
        m, n, warps, stages = (32, 16 if by_key else 32, 8, 2) if block_d <= 64 else (16, 16, 8, 1)
    elif block_d <= 64:
        m, n, warps, stages = 32 if _warp_groups() else 16, 128, 8, 2
    elif block_d <= 128:
        m, n, warps, stages = (16, 64 if turned else 128, 8, 2) if _warp_groups() else (32, 32, 8, 2)
    else:
        m, n, warps, stages = 16, 32, 8, 1
    return _sizes(m, n, block_d, warps, stages) | ring(m, n)


def band_tile_sizes(width: int, element_size: int) -> dict[str, int]:
    """As :func:`tile_sizes`, of ``band_gradients``: the warps lie along the queries, so that a sum over keys stays within one."""
    block_d = _block_d(width)
    if element_size > 2:
        m, n, warps = 32 if block_d <= 64 else 16, 32, 8
    elif block_d <= 128:
        m, n, warps = 64, 32 if block_d <= 64 else 16, 4
    else:
        m, n, warps = 64, 16, 8
    return _sizes(m, n, block_d, warps, 2) | {"BAND": 32}


def line_sizes(kernel: str, width: int, queries: int, element_size: int, groups: bool | None = None) -> dict[str, int]:
    """Sizes of each kernel where a row is read for each offset (``transformer_xl``): a second product, its windows and their places take registers.

    ``groups``: whether for sm_90; None asks the device.
    """
    block_d, warps = _block_d(width), 8
    if groups is None:
        groups = _warp_groups()
    if element_size > 2:
        m, n = 32 if block_d <= 64 and kernel != "key" else 16, 32 if block_d <= 64 or kernel == "key" else 16
    elif kernel == "tile":
        m, n = 128 if groups else 64, 64 if block_d <= 64 else 32
    elif kernel == "band":
        m, n, warps = 64, 32 if block_d <= 64 else 16, 8 if groups and block_d > 64 else 4
    elif kernel == "query":
        m, n = (128, 32) if groups and block_d <= 64 else (32, 32)
    else:
        m, n = (16, 128) if groups and block_d <= 64 else (32, 32)
    if block_d > 128:
        m, n, warps = 16, 32, 8
    if kernel == "tile" and queries <= 16:
        m, n = 16, 32
    return _sizes(m, n, block_d, warps, 1) | ({"BAND": 32} if kernel == "band" else ring(m, n))


def untied_sizes(kernel: str, width: int, queries: int, element_size: int) -> dict[str, int]:
    """Sizes of each kernel where rows of positions are read (``tupe``): a second product and, backward, a second sum beside that of q or k."""
    block_d, groups = _block_d(width), _warp_groups()
    narrow = block_d <= 64
    m, n, warps, stages = {
        "tile": (128 if narrow else 64, 32, 8, 3),
        "query": (64 if groups and narrow else 32, 32, 8, 2),
        "key": (32, 32, 8, 1) if narrow else (16, 16, 8, 1),
        "band": (64, 32, 4, 2) if narrow else (32, 16, 8, 2),
    }[kernel]
    if element_size > 2 or block_d > 128:
        m, n, warps, stages = 16, 32 if block_d <= 64 else 16, 8, 1
    if kernel == "tile" and queries <= 16:
        m, n, warps, stages = 16, 32, 8 if element_size > 2 else 4, 3
    return _sizes(m, n, block_d, warps, stages) | ({"BAND": 32} if kernel == "band" else ring(m, n))


def slab(kernel: str, sizes: dict[str, int]) -> int:
    """Numbers of memory that each program has for itself where offset rows are read: a ring of windows, or a band, and ds of a tile of keys."""
    windows = sizes["BAND"] if kernel == "band" else sizes["RING"] * sizes["WINDOW"]
    return sizes["BLOCK_M"] * (windows + (sizes["BLOCK_N"] if kernel in ("query", "band") else 0))


def ring(m: int, n: int) -> dict[str, int]:
    """Windows of offsets (``transformer_xl``): a new one for each tile of keys, and as many as the offsets of a tile can touch."""
    window = min(n, 64)
    return {"WINDOW": window, "RING": -(-(m + n + window - 2) // window)}


def _warp_groups() -> bool:
    """Whether products read their operands from shared memory, four warps together (sm_90 to sm_100): larger tiles fit in registers."""
    if interpreted():
        return False
    import triton

    target = triton.runtime.driver.active.get_current_target()
    return target.backend == "cuda" and 90 <= target.arch < 120


def _block_d(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())


def _sizes(m: int, n: int, block_d: int, warps: int, stages: int) -> dict[str, int]:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_D": block_d, "SCAN": 1024, "num_warps": warps, "num_stages": stages}
