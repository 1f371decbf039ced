"""Tile and pipeline sizes of the kernels, chosen so that what ``compile`` reports for sm_80 and sm_90 stays within its bars."""

from __future__ import annotations

from positionlib.kernels.admission import interpreted


def tile_sizes(width: int, queries: int, element_size: int, crowded: bool) -> dict[str, int]:
    """Sizes of ``tile``. ``crowded``: a program reads numbers by pair besides the scores, and their addresses take registers too."""
    block_d = _block_d(width)
    decoding = queries <= 16  # one short tile of queries, the smallest that a tensor core takes
    if element_size > 2:  # full float32 precision runs without tensor cores: small tiles, to stay in registers
        m, n, warps, stages = 32 if block_d <= 64 else 16, 32, 8, 2
    elif crowded:
        m, n, warps, stages = 64 if block_d <= 64 else 32, 32, 8, 2
    elif block_d <= 64:
        m, n, warps, stages = 128, 64, 8, 3
    elif block_d <= 128:
        m, n, warps, stages = 128, 32, 8, 3
    else:
        m, n, warps, stages = 64, 32, 8, 2
    if decoding:
        m, n, warps, stages = 16, 32, 8 if element_size > 2 else 4, 3
    return _sizes(m, n, block_d, warps, stages)


def query_tile_sizes(width: int, element_size: int, crowded: bool) -> dict[str, int]:
    """As :func:`tile_sizes`, of ``query_gradients``."""
    block_d = _block_d(width)
    if element_size > 2:
        m, n, warps, stages = 32 if block_d <= 64 else 16, 32, 8, 2
    elif crowded:
        m, n, warps, stages = 32, 32 if block_d <= 64 else 16, 8, 1
    elif block_d <= 64:
        m, n, warps, stages = 128, 64 if _warp_groups() else 32, 8, 3
    elif block_d <= 128:
        m, n, warps, stages = 128 if _warp_groups() else 64, 32, 8, 2
    else:
        m, n, warps, stages = 32, 32, 8, 1
    return _sizes(m, n, block_d, warps, stages)


def key_tile_sizes(width: int, element_size: int, crowded: bool) -> dict[str, int]:
    """As :func:`tile_sizes`, of ``key_gradients``."""
    block_d = _block_d(width)
    if element_size > 2:
        m, n, warps, stages = 16, 32, 8, 2
    elif crowded:
        m, n, warps, stages = (32, 32, 8, 1) if block_d <= 64 else (16, 16, 8, 1)
    elif block_d <= 64:
        m, n, warps, stages = 32 if _warp_groups() else 16, 128, 8, 2
    elif block_d <= 128:
        m, n, warps, stages = (16, 128, 8, 2) if _warp_groups() else (32, 32, 8, 2)
    else:
        m, n, warps, stages = 16, 32, 8, 1
    return _sizes(m, n, block_d, warps, stages)


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
