"""The vendor packages as porter emits them, in a folder of their own, and beside them the real ones of the same names.

- ``emitted(packages)``: renders the named packages from ``porter.lock`` and ``overrides/`` into a temporary folder.
- ``Isolated(folders, packages)``: imports packages from those folders, the first that has one; while it is entered,
  ``sys.modules`` holds them and none of the same names from elsewhere.
"""

from __future__ import annotations

import atexit
import importlib
import pkgutil
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from porter.config import load_config
from porter.lock import read_lock
from porter.overrides import load_overrides
from porter.plan import VENDOR_OUT, Plan, make_plan
from porter.render.output import render

ROOT = Path(__file__).resolve().parents[3]


@cache
def plan() -> Plan:
    """What this checkout's lock and overrides would emit."""
    config = load_config(ROOT / "porter.toml")
    return make_plan(config, read_lock(config.lock_path), load_overrides(config.overrides_path))


@cache
def emitted(packages: tuple[str, ...] = ("tile_kernels", "tilelang")) -> Path:
    """Folder that holds the emitted ``packages``, the shared ones and nothing else of the vendors."""
    chosen = plan()
    modules = tuple(one for one in chosen.modules if one.package in packages)
    # Black's layout changes nothing that runs, and takes longer than all the rest.
    with patch("porter.render.output.format_all", dict):
        files = render(replace(chosen, modules=modules), chosen.config.overrides_path.name)
    folder = Path(tempfile.mkdtemp(prefix="porter-vendor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, data in files.items():
        if path.startswith(VENDOR_OUT + "/"):
            target = folder / path.removeprefix(VENDOR_OUT + "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return folder


class Isolated:
    """Packages imported from ``folders``, in ``sys.modules`` only while this is entered."""

    def __init__(
        self, folders: tuple[Path, ...], packages: tuple[str, ...], *, shared: tuple[str, ...] = (), walk: bool = True
    ) -> None:
        self.folders, self.packages = folders, (*(name.partition(".")[0] for name in packages), *shared)
        self.modules: dict[str, ModuleType] = {}
        self._others: dict[str, ModuleType] = {}
        with self:
            for name in packages:
                found = importlib.import_module(name)
                for _, inner, _ in pkgutil.walk_packages(found.__path__, name + ".") if walk else ():
                    importlib.import_module(inner)

    def __getitem__(self, name: str) -> Any:
        return self.modules[name]

    def _owned(self) -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.packages}

    def __enter__(self) -> Isolated:
        self._others = self._owned()
        for name in self._others:
            del sys.modules[name]
        sys.modules.update(self.modules)
        sys.path[:0] = [str(folder) for folder in self.folders]
        importlib.invalidate_caches()
        _forget_imports()
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self.folders:
            sys.path.remove(str(folder))
        self.modules = self._owned()
        for name in self.modules:
            del sys.modules[name]
        sys.modules.update(self._others)
        _forget_imports()
        for name, module in self.modules.items():
            origin = getattr(module, "__file__", None)
            assert origin is None or any(
                Path(origin).is_relative_to(folder) for folder in self.folders
            ), f"{name} came from {origin}"


def _forget_imports() -> None:
    """Dynamo remembers the modules that it met, by name."""
    tracer = sys.modules.get("torch._dynamo.symbolic_convert")
    if tracer is not None:
        tracer._import_module.cache_clear()
