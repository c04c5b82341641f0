"""The oracle's own environment: a virtual environment in porter's cache, made once.

Its packages come from the package index by pip; torch alone, the heavy one, is this interpreter's own, linked in with
what it needs and nothing else of this interpreter's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from porter.e2e.errors import OracleError
from porter.sources.cache import Cache, default_cache
from porter.sources.progress import Progress, QuietProgress

ORACLE = "nemo-automodel==0.7.0"
"""Installed without its dependencies, which are those of a training framework; its DeepSeek-V4.1 needs ``NEEDED``."""

NEEDED = ("transformers==5.18.0", "pillow==13.0.0", "pyyaml==6.0.4", "numpy==2.5.5")

_LOG_LINES = 20


def prepare(root: Path | None = None, progress: Progress | None = None) -> Path:
    """The environment's interpreter; the environment lies below ``root`` (porter's cache).

    Raises OracleError where a package cannot be installed.
    """
    shown = progress or QuietProgress()
    root = root or default_cache() / "e2e"
    root.mkdir(parents=True, exist_ok=True)
    made_of = [ORACLE, *NEEDED, sys.version, *(f"{d.name} {d.version} {d.locate_file('')}" for d in torch_and_its_needs())]
    folder = root / f"oracle-{hashlib.sha256(chr(10).join(made_of).encode()).hexdigest()[:16]}"
    ready, python = folder / "ready", folder / "bin" / "python"
    with Cache(root).hold(folder.name, shown):
        if not ready.exists():
            with shown.task(f"installing {ORACLE} into an environment of its own"):
                _make(folder)
            ready.touch()
    return python


def _make(folder: Path) -> None:
    """Environments cannot be renamed into place; ``ready`` says that one is whole."""
    venv.EnvBuilder(clear=True, with_pip=True).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    link_torch(packages)
    for arguments in (["--no-deps", ORACLE], [*NEEDED]):
        command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run([*command, *arguments], stdout=log, stderr=subprocess.STDOUT, check=False)
            log.seek(0)
            if done.returncode:
                tail = "\n".join(log.read().splitlines()[-_LOG_LINES:])
                raise OracleError(
                    f"pip cannot install {' '.join(arguments)} (exit code {done.returncode}):\n{tail}",
                    fix="see that the package index can be reached, and run the same command again",
                )


def torch_and_its_needs() -> list[importlib.metadata.Distribution]:
    """Torch's distribution in this interpreter and those that it requires here, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}

    def add(name: str) -> None:
        if canonicalize_name(name) in found:
            return
        distribution = found[canonicalize_name(name)] = importlib.metadata.distribution(name)
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                add(requirement.name)

    add("torch")
    return [found[name] for name in sorted(found)]


def link_torch(packages: Path) -> None:
    """Put links to torch's and its requirements' files into ``packages``."""
    for distribution in torch_and_its_needs():
        for top in _tops(distribution):
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))


def _tops(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    yield from sorted({path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")})
