"""``tl``: the emitted tilelang, which imports find while a test runs. ``run_with``: a fresh process that has it first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).resolve().parent
_SUPPORT = _HERE.parent / "tile_kernels"
if str(_SUPPORT) not in sys.path:
    sys.path.insert(0, str(_SUPPORT))

from emitted_packages import Isolated, emitted  # noqa: E402


@pytest.fixture(scope="session")
def _tilelang() -> Isolated:
    return Isolated((emitted(),), ("tilelang",), shared=("neuron_unavailable",))


@pytest.fixture
def tl(_tilelang: Isolated) -> Iterator[Any]:
    """The emitted package."""
    with _tilelang:
        yield _tilelang["tilelang"]


@pytest.fixture(scope="session")
def vendor_folder() -> Path:
    """Folder of the emitted packages."""
    return emitted()


@pytest.fixture(scope="session")
def run_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run Python text in a process whose import path starts with given folders, and return what it printed."""

    def run(text: str, *folders: Path) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
        place = tmp_path_factory.mktemp("run")
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
