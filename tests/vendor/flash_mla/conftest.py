"""Paths for the ``flash_mla`` tests, and upstream's files that run on a CPU when their neighbours are stood in for."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

_ROOT = Path(__file__).resolve().parents[3]
for _path in (_ROOT, _ROOT / "overrides" / "shared", _ROOT / "tests" / "kernels", Path(__file__).resolve().parent):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

from flash_mla_support import modules, package  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20261204)
    yield
    torch.set_num_threads(before)


class _OnTheCpu(TorchFunctionMode):
    """Upstream's tests name GPUs; what they make is made here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and isinstance(args[1], torch.device):
            return args[0]
        return func(*args, **{key: value for key, value in (kwargs or {}).items() if key != "device"})


@pytest.fixture
def load(source_root: Callable[[str], Path]) -> Callable[..., types.ModuleType]:
    """``load(source, path, **neighbours)``: an upstream file, unedited, with the modules it imports replaced by those given."""

    def get(source: str, path: str, **neighbours: types.ModuleType) -> types.ModuleType:
        file = source_root(source) / path
        spec = importlib.util.spec_from_file_location(f"upstream_{file.stem.replace('-', '_')}", file)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        names = {name.replace("__", "."): value for name, value in neighbours.items()}
        with modules(names), _OnTheCpu():
            spec.loader.exec_module(loaded)
        return loaded

    return get


@pytest.fixture
def flash_mla() -> Iterator[types.ModuleType]:
    """The drop-in as a package, in ``sys.modules`` while a test runs."""
    from overrides.vendor.flash_mla import flash_mla_interface, fused_norm_rope_attn_rope_cast

    public = {name: value for name, value in vars(flash_mla_interface).items() if not name.startswith("_")}
    made = package("flash_mla", fused_norm_rope_attn_rope_cast=fused_norm_rope_attn_rope_cast, **public)
    made.__path__ = []
    with modules({"flash_mla": made, "flash_mla.flash_mla_interface": flash_mla_interface}):
        yield made
