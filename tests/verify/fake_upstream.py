"""A tiny upstream: the package layout that verification relies on, an interface module a rule, and a backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

OPS = "deepinfer/model_executor/layers/tilelang_ops"

_TREE = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        addopts = ["--import-mode=importlib"]
        markers = ["benchmark: timings"]
    """,
    "deep_cluster/__init__.py": "",
    "deep_cluster/hardware/__init__.py": "def get_actual_num_gpus():\n    return 0\n",
    "deepinfer/__init__.py": """
        def __getattr__(name):
            if name != "PLATFORM":
                raise AttributeError(name)
            from deepinfer.platform import get_platform
            return get_platform()
    """,
    "deepinfer/platform.py": """
        import enum

        class PlatformEnum(enum.Enum):
            GPU = 1
            NPU = 2

        class Platform:
            is_gpu = property(lambda self: self.enum is PlatformEnum.GPU)
            is_npu = property(lambda self: self.enum is PlatformEnum.NPU)

        def get_platform():
            raise RuntimeError("no accelerator")
    """,
    "deepinfer/testing.py": """
        def assert_close(x, y, name, eps=1e-4):
            assert (x - y).abs().max() < eps, name
    """,
    "deepinfer/model_executor/__init__.py": "",
    "deepinfer/model_executor/layers/__init__.py": "",
    f"{OPS}/__init__.py": "",
    f"{OPS}/ops.py": """
        import importlib, pkgutil
        from deepinfer import PLATFORM

        _package = importlib.import_module(f"{__package__}.{PLATFORM.tilelang_ops_backend}")
        for _info in pkgutil.iter_modules(_package.__path__):
            _module = importlib.import_module(f"{_package.__name__}.{_info.name}")
            globals().update({name: value for name, value in vars(_module).items() if name.endswith("_tl")})

        class KernelUnavailableError(AttributeError):
            pass

        def __getattr__(name):
            raise KernelUnavailableError(name)
    """,
    f"{OPS}/conftest.py": """
        from pathlib import Path
        import pytest

        def pytest_collect_file(file_path, parent):
            if file_path.suffix != ".py" or file_path.name in ("conftest.py", "__init__.py"):
                return None
            if "def test_" not in file_path.read_text():
                return None
            return parent.session.gethookproxy(file_path).pytest_pycollect_makemodule(module_path=file_path, parent=parent)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(item):
            try:
                return (yield)
            except AttributeError as error:
                if type(error).__name__ != "KernelUnavailableError":
                    raise
                pytest.skip(str(error))
    """,
}

HEADER = """
import pytest
import torch
from deepinfer import PLATFORM
from deepinfer.model_executor.layers.tilelang_ops import ops
from deepinfer.testing import assert_close
"""

COPY_BACKEND = """
def copy_tl(width):
    def copy(x, out):
        out.copy_(x)
    return copy
"""


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write dedented ``files`` under ``root``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return root


def make_upstream(root: Path, modules: Mapping[str, str]) -> Path:
    """An upstream whose interface modules are ``modules`` (stem to text after the usual imports)."""
    write_tree(root, _TREE)
    return write_tree(root, {f"{OPS}/{stem}.py": HEADER + dedent(text) for stem, text in modules.items()})


def make_overlay(root: Path, backend: Mapping[str, str]) -> Path:
    """An emitted tree whose backend modules are ``backend``."""
    return write_tree(
        root, {f"{OPS}/neuron/__init__.py": "", **{f"{OPS}/neuron/{stem}.py": text for stem, text in backend.items()}}
    )
