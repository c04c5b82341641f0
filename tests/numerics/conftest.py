"""``tk``: the torch references of the real tile-kernels, which pack scales as on Ascend while a test runs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

_ASCEND_NODE = "/dev/davinci_manager"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20261202)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tk() -> Iterator[Any]:
    exists = os.path.exists
    with patch("os.path.exists", lambda path: path == _ASCEND_NODE or exists(path)):
        config: Any = importlib.import_module("tile_kernels.config")
        config.is_ascend.cache_clear()
        assert config.is_ascend()
        try:
            yield importlib.import_module("tile_kernels.torch")
        finally:
            config.is_ascend.cache_clear()
