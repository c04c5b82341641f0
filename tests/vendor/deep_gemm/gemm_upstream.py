"""Upstream's own Python package and test modules, unedited, on top of the drop-in.

``load_package`` executes the unpacked distribution's ``deep_gemm`` with the override in the place of its C++ module; names that the
drop-in leaves out raise. ``load_test`` executes one of its test files. Their ``"cuda"`` literals mean the CPU inside ``on_host``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

PACKAGE = "deep_gemm"
SUPPORT = ("generators", "utils")


class _NativeModule(types.ModuleType):
    """Stands for a C++ module: the override's names; what it does not have raises when called."""

    def __init__(self, name: str, override: types.ModuleType | None = None) -> None:
        super().__init__(name)
        self.override = override

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.override is not None and hasattr(self.override, _ALIASES.get(name, name)):
            return getattr(self.override, _ALIASES.get(name, name))

        def missing(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{name}: not supported on Neuron (basic mode)")

        return missing


# Bound twice in upstream's C++ module.
_ALIASES = {
    "fp4_gemm_nt": "fp8_fp4_gemm_nt",
    "fp8_gemm_nt": "fp8_fp4_gemm_nt",
    "fp8_gemm_nn": "fp8_fp4_gemm_nn",
    "fp8_gemm_tn": "fp8_fp4_gemm_tn",
    "fp8_gemm_tt": "fp8_fp4_gemm_tt",
    "m_grouped_fp4_gemm_nt_contiguous": "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous": "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous": "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp4_gemm_nt_masked": "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nt_masked": "m_grouped_fp8_fp4_gemm_nt_masked",
}


class _CudaIsHost(TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def bench(function: Callable[[], Any], kernels: Any, *args: Any, **kwargs: Any) -> Any:
    """In the place of the profiler: runs the function once and reports a second for each kernel name."""
    function()
    return 1.0 if isinstance(kernels, str) else (1.0,) * len(kernels)


@contextlib.contextmanager
def on_host(arch: int) -> Iterator[None]:
    """``"cuda"`` means the CPU, and the device says that it is of the generation ``arch``."""
    with (
        mock.patch.object(torch.cuda, "get_device_capability", lambda *args: (arch, 0)),
        mock.patch.object(torch.cuda, "empty_cache", lambda: None),
        _CudaIsHost(),
    ):
        yield


@contextlib.contextmanager
def loaded(root: Path, support: Path) -> Iterator[types.ModuleType]:
    """Upstream's package on the drop-in; ``support`` holds the modules that its test files expect beside them."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in (PACKAGE, *SUPPORT)}
    for name in kept:
        del sys.modules[name]
    sys.modules[f"{PACKAGE}._C"] = _NativeModule(
        f"{PACKAGE}._C", importlib.import_module("overrides.vendor.deep_gemm._C")
    )
    sys.modules[f"{PACKAGE}._C"].__dict__["init"] = lambda folder: None
    for part in ("epilogue", "locality_domain"):
        name = f"{PACKAGE}._C.{part}"
        sys.modules[name] = sys.modules[f"{PACKAGE}._C"].__dict__[part] = _NativeModule(name)
    # Upstream's Triton kernels; its package catches their absence.
    sys.modules[f"{PACKAGE}.legacy"] = types.ModuleType(f"{PACKAGE}.legacy")
    sys.path[:0] = [str(root), str(support)]
    try:
        with mock.patch("atexit.register", lambda *args: None):
            package = importlib.import_module(PACKAGE)
        package.testing.bench_kineto = bench
        yield package
    finally:
        del sys.path[:2]
        for name in [name for name in sys.modules if name.split(".")[0] in (PACKAGE, *SUPPORT)]:
            del sys.modules[name]
        sys.modules.update(kept)


def load_test(root: Path, name: str) -> types.ModuleType:
    """Upstream's ``tests/<name>.py`` as a module."""
    path = root / "tests" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"deep_gemm_{name}", path)
    assert spec is not None and spec.loader is not None, f"{path} cannot be loaded"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
