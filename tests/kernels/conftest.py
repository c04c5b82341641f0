"""Lets the tests of this folder import the overrides as the emitted backend will hold them, and upstream beside them.

- ``overrides`` is importable (as ``overrides.tilelang_ops.<module>``) and ``neuron_numerics`` too.
- ``upstream("gather")`` is upstream's interface module, imported from its unpacked sources on a platform that reports
  NPU and whose backend is ``overrides/tilelang_ops``. Its ``"cuda"`` literals mean the CPU, inside the fixture only.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

_ROOT = Path(__file__).resolve().parents[2]
for _path in (_ROOT, _ROOT / "overrides" / "shared", Path(__file__).resolve().parent):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

_OPS = "deepinfer.model_executor.layers.tilelang_ops"
_CONTAINERS = {
    "LogitsTransformInputs": ("temperatures", "top_ps", "top_ks"),
    "SamplingKernelInputs": ("logits", "seq_seeds", "sample_positions"),
    "DecodeSamplingInputs": (),
    "DriverSamplingInputs": (),
    "PrefillSamplingInputs": (),
    "PromptLogprobInputs": (),
    "SamplerInputs": (),
    "SpeculativeSamplingInputs": (),
}


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker that upstream's modules use as they are imported."""
    config.addinivalue_line("markers", "benchmark: upstream's own benchmarks; none is collected here")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep the machine's other core free, and sums in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20261201)
    yield
    torch.set_num_threads(before)


def _stub_extension() -> None:
    """Stand in for the compiled extension: upstream's sampling modules only need its containers."""
    engine = types.ModuleType("deepinfer._C.engine")
    for name, fields in _CONTAINERS.items():
        setattr(engine, name, dataclasses.make_dataclass(name, fields))
    package = types.ModuleType("deepinfer._C")
    package.__path__ = []  # type: ignore[attr-defined]
    package.engine = engine  # type: ignore[attr-defined]
    sys.modules.setdefault("deepinfer._C", package)
    sys.modules.setdefault("deepinfer._C.engine", engine)


def _stub_backend() -> None:
    """Make ``overrides/tilelang_ops`` the backend package that upstream's dispatcher walks."""
    backend = types.ModuleType(f"{_OPS}.neuron")
    backend.__path__ = [str(_ROOT / "overrides" / "tilelang_ops")]  # type: ignore[attr-defined]
    sys.modules[backend.__name__] = backend


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites device arguments; upstream's references and interfaces name "cuda" themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        swapped = {
            name: "cpu" if value == "cuda" else value for name, value in (kwargs or {}).items() if name == "device"
        }
        return func(*args, **{**(kwargs or {}), **swapped})


@pytest.fixture(scope="session")
def _upstream_import(source_root: Callable[[str], Path]) -> Callable[[str], types.ModuleType]:
    sys.path.insert(0, str(source_root("deepinfer")))
    platform = importlib.import_module("deepinfer.platform")

    class NeuronPlatform(platform.Platform):  # type: ignore[name-defined,misc]
        enum = platform.PlatformEnum.NPU
        tilelang_ops_backend = "neuron"
        distributed_backend = "gloo"
        fp8_sf_type = torch.int16

    instance = NeuronPlatform()
    platform.get_platform = lambda: instance
    _stub_extension()
    _stub_backend()
    return lambda name: importlib.import_module(f"{_OPS}.{name}")


@pytest.fixture
def upstream(_upstream_import: Callable[[str], types.ModuleType]) -> Iterator[Callable[[str], Any]]:
    """Import one of upstream's interface modules by name; its references run on the CPU."""
    with _CudaMeansCpu():
        yield _upstream_import
