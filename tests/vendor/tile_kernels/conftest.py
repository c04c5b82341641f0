"""``tk``: the emitted tile_kernels. ``real``: the real distribution's, which packs scales as on Ascend while a test runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

_HERE = Path(__file__).resolve().parent
for _path in (_HERE, _HERE.parents[1] / "kernels", _HERE.parents[2] / "overrides" / "shared"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

from emitted_packages import Isolated, emitted  # noqa: E402

_ASCEND_NODE = "/dev/davinci_manager"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20261203)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def _drop_in() -> Isolated:
    shared = ("tilelang", "neuron_numerics", "neuron_unavailable")
    return Isolated((emitted(),), ("tile_kernels",), shared=shared)


@pytest.fixture(scope="session")
def _upstream(source_root: Callable[[str], Path]) -> Isolated:
    # The real package needs of TileLang no more than the emitted one has, which spares the compiler's own import.
    exists = os.path.exists
    # It decorates one reference with torch.compile, whose import takes longer than all the rest.
    with (
        patch("os.path.exists", lambda path: path == _ASCEND_NODE or exists(path)),
        patch("torch.compile", lambda function: function),
    ):
        shared = ("tilelang", "neuron_unavailable")
        upstream = Isolated((source_root("tile_kernels"), emitted()), ("tile_kernels",), shared=shared, walk=False)
        with upstream:
            importlib.import_module("tile_kernels.testing.moe")
        return upstream


@pytest.fixture
def real(_upstream: Isolated) -> Iterator[Any]:
    """The real package; it takes the machine for an Ascend one."""
    exists, package = os.path.exists, _upstream["tile_kernels"]
    with patch("os.path.exists", lambda path: path == _ASCEND_NODE or exists(path)):
        package.config.is_ascend.cache_clear()
        assert package.config.is_ascend()
        yield package
    package.config.is_ascend.cache_clear()


@pytest.fixture
def tk(_drop_in: Isolated) -> Iterator[Any]:
    """The emitted package; while a test runs it is the one that imports find."""
    with _drop_in:
        package = _drop_in["tile_kernels"]
        package.config.reset_runtime_config()
        yield package
        package.config.reset_runtime_config()
