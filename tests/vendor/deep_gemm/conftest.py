"""Lets the tests of this folder import the drop-in as it is emitted, the kernel harness, and upstream's package beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

_ROOT = Path(__file__).resolve().parents[3]
for _path in (_ROOT, _ROOT / "overrides" / "shared", _ROOT / "tests" / "kernels", Path(__file__).resolve().parent):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def gemm() -> Iterator[ModuleType]:
    """The drop-in's C++ module, its settings put back afterwards."""
    import overrides.vendor.deep_gemm._C as native

    before = dict(native._SETTINGS)
    yield native
    native._SETTINGS.update(before)


@pytest.fixture
def upstream(source_root: Callable[[str], Path], gemm: ModuleType) -> Iterator[tuple[Path, ModuleType]]:
    """Folder of the pinned distribution, and its Python package running on the drop-in."""
    from gemm_upstream import loaded

    root = source_root("deep_gemm")
    with loaded(root, Path(__file__).resolve().parent / "upstream_support") as package:
        yield root, package
