"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

_DEV = {
    "deepinfer": "deepinfer-0.1.0",
    "tile_kernels": "tile-kernels-2.1.0",
    "tile_kernels_1_0_0": "tile-kernels-1.0.0",
    "deep_gemm": "deepinfer-gemm-2.8.2",
    "flash_mla": "deepinfer-flashmla-1.0.0",
    "deep_ep": "deepinfer-ep-2.5.0",
    "deep_select": "tokenspeed-deepselect-1.0.0.post20260910",
    "tilelang": "tilelang-0.1.15",
}


@pytest.fixture(scope="session")
def source_root() -> Callable[[str], Path]:
    """Unpacked folder of a pinned source, by the name porter.toml gives it."""

    def locate(name: str) -> Path:
        return Path(os.environ.get("PORTER_DEV_SOURCES", "/tmp/up/src")) / _DEV[name]

    return locate
