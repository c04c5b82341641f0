"""FAKE vendor packages, for import tests alone: any name exists, nothing works. See ``tree.fake_vendor``.

Importing this module makes the packages below importable where neither an emitted drop-in nor a real package is
found. A test that passes with them proves that DeepInfer's own modules import; it says nothing about kernels.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

PACKAGES = ("deep_ep", "deep_gemm", "deep_select", "flash_mla")


class FakeModule(types.ModuleType):
    """A module in which every public name is a class that cannot be made."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(f"{self.__name__}.{name} is a fake")

        value = type(name, (), {"__new__": refuse, "__module__": self.__name__})
        setattr(self, name, value)
        return value


class FakeFinder:
    """Last on ``sys.meta_path``: asked only for what nobody else found."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, FakeFinder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> FakeModule:
        return FakeModule(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """Nothing to run."""


sys.meta_path.append(FakeFinder)  # type: ignore[arg-type]
