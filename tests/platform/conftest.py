"""An applied DeepInfer tree, its extension, and processes that run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from porter.demo.workspace import add_extension, workspace_root
from porter.seams import api
from tests.platform.support import tree

REPOSITORY = Path(__file__).resolve().parents[2]

_UNSET = (
    "CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "MASTER_PORT", "LOCAL_RANK", "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def applied(tmp_path_factory: pytest.TempPathFactory, source_root: Callable[[str], Path]) -> Path:
    """A copy of the pinned DeepInfer with the backend applied, on ``sys.path`` for this session's own imports."""
    target = tmp_path_factory.mktemp("applied") / "deepinfer"
    shutil.copytree(source_root("deepinfer"), target)
    api.apply(api.plan(target, tree.payload()))
    return target


@pytest.fixture(scope="session")
def engine(applied: Path) -> Path:
    """``applied`` with its extension, built by upstream's own command or taken from a build of the same sources."""
    add_extension(applied, workspace_root())
    return applied


def environ(device: str | None, **changes: str) -> dict[str, str]:
    """This process's environment for a child on ``device``; None leaves DEEPINFER_ACCELERATOR unset."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("DEEPINFER_") and name not in _UNSET
    }
    clean["OMP_NUM_THREADS"] = "1"
    if device is not None:
        clean.update(DEEPINFER_ACCELERATOR="neuron", DEEPINFER_NEURON_DEVICE=device)
    return {**clean, **changes}


@pytest.fixture
def run(applied: Path) -> Run:
    """Runs a script in a process of its own that can import the applied tree.

    ``run(script, device="cpu", env={...})``; ``device="neuron"`` registers the stand-in device first unless
    ``stand_in=False``.
    """

    def execute(
        script: str, *, device: str | None = "cpu", env: Mapping[str, str] | None = None, stand_in: bool = True
    ) -> subprocess.CompletedProcess[str]:
        lead = "import tests.platform.support.stand_in_device\n" if device == "neuron" and stand_in else ""
        environment = environ(device, **(env or {}))
        environment["PYTHONPATH"] = f"{applied}{os.pathsep}{REPOSITORY}"
        return subprocess.run(
            [sys.executable, "-c", lead + textwrap.dedent(script)],
            cwd=applied.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return execute


@pytest.fixture
def deep_cluster(applied: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the applied tree's torch-free modules importable in this process, as Neuron without hardware."""
    for name in (*_UNSET, "DEEPINFER_NEURON_DEVICE", "NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "neuron")
    monkeypatch.syspath_prepend(str(applied))
    others = _take_modules()
    yield
    _take_modules()
    sys.modules.update(others)


def _take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] in ("deep_cluster", "deepinfer")]
    return {name: sys.modules.pop(name) for name in names}
