"""An engine that can run: a copy of the pinned DeepInfer, the emitted backend applied to it, its extension built.

Below porter's cache, in ``demo/``: ``checkout-<key>`` and ``extension-<key>``, each keyed by what it is made from and
appearing by one rename, so that a second run starts at once and an interrupted one leaves nothing half done in sight.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from porter.config import ENGINE, Config
from porter.demo.errors import BuildError, MissingPackagesError
from porter.seams.model import ApplyPlan
from porter.sources.cache import Cache, default_cache
from porter.sources.progress import Progress, QuietProgress

NEEDED = {
    "torch": "torch", "numpy": "numpy", "transformers": "transformers", "tokenizers": "tokenizers",
    "safetensors": "safetensors", "pybind11": "pybind11", "ninja": "ninja", "zmq": "pyzmq", "posix_ipc": "posix_ipc",
    "orjson": "orjson", "psutil": "psutil", "sympy": "sympy", "tabulate": "tabulate", "xgrammar": "xgrammar",
    "PIL": "pillow", "tqdm": "tqdm", "requests": "requests", "setuptools": "setuptools",
}  # fmt: skip
"""Import name to distribution."""

_DROPPED = (
    "CUDA_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES", "MASTER_PORT", "LOCAL_RANK", "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "PORTER_DEMO_PRELOAD",
)  # fmt: skip
_LOG_LINES = 30


class Target(StrEnum):
    """Where the engine computes: on the host, or on the simulated ``neuron`` device (porter.sim)."""

    HOST = "host"
    SIM = "sim"


PRELOAD = "PORTER_DEMO_PRELOAD"
"""Module that the engine's process imports first, as TorchNeuron's autoload would be."""


@dataclass(frozen=True)
class Workspace:
    """``checkout``: an applied DeepInfer with its extension. ``root``: folder for whatever else a run makes."""

    root: Path
    checkout: Path
    target: Target = Target.HOST

    def environment(self, **changes: str) -> dict[str, str]:
        """This process's environment for the engine on ``target``. Nothing but variables says so.

        The user's own ``DEEPINFER_*`` and device variables are left out; ``changes`` come last.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DEEPINFER_") and name not in _DROPPED
        }
        kept.setdefault("OMP_NUM_THREADS", "1")
        path = [str(self.checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        chosen = {"DEEPINFER_NEURON_DEVICE": "cpu", "DEEPINFER_NEURON_MEMORY_GB": "1"}
        if self.target is Target.SIM:
            chosen = {"DEEPINFER_NEURON_DEVICE": "neuron", PRELOAD: "porter.sim.preload"}
            chosen["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # no other device beside it
            path.append(str(Path(__file__).resolve().parents[2]))
        return {**kept, "PYTHONPATH": os.pathsep.join(path), "DEEPINFER_ACCELERATOR": "neuron", **chosen, **changes}


def prepare(
    config: Config, *, root: Path | None = None, offline: bool = False, progress: Progress | None = None
) -> Workspace:
    """Make the workspace below ``root`` (porter's cache), or take it again where nothing it is made from changed.

    Raises:
        MissingPackagesError: the engine's packages are not installed. BuildError: the extension does not build.
        PorterError: the pinned source cannot be had, or no complete tree is emitted.
    """
    from porter.judging import payload
    from porter.lock import read_lock
    from porter.seams import api
    from porter.upstream import Request, resolve_sources

    require_packages()
    shown = progress or QuietProgress()
    source = resolve_sources(
        config, Request(offline=offline, only=(ENGINE,)), read_lock(config.lock_path), progress=progress
    )[ENGINE]
    files = payload(config.out_path)
    root = root or workspace_root()
    root.mkdir(parents=True, exist_ok=True)
    key = checkout_key(api.plan(source.top, files), source.sha256)
    checkout = root / f"checkout-{key}"
    with Cache(root).hold(f"checkout-{key}", shown):
        if not checkout.is_dir():
            with shown.task("applying the backend to a copy of DeepInfer"):
                _once(checkout, lambda folder: _applied(source.top, files, folder))
    add_extension(checkout, root, shown)
    return Workspace(root, checkout)


def checkout_key(plan: ApplyPlan, upstream: str) -> str:
    """Names the checkout that applying ``plan`` to the release of sha256 ``upstream`` makes: a seam's edit counts as much as an
    emitted file."""
    changes = {change.path: change.after or b"" for change in plan.changes}
    return _digest({**changes, "/upstream": upstream.encode(), "/python": _interpreter().encode()})


def add_extension(checkout: Path, root: Path, progress: Progress | None = None) -> None:
    """Put the extension of an applied ``checkout`` into it: the one below ``root`` that was built of the same sources, or a new one.

    Raises BuildError where it does not build.
    """
    shown = progress or QuietProgress()
    extension = root / f"extension-{_digest(_sources_of_extension(checkout))}"
    root.mkdir(parents=True, exist_ok=True)
    with Cache(root).hold(extension.name, shown):
        if not extension.is_dir():
            with shown.task("building the engine's extension (minutes, the first time)"):
                _once(extension, lambda folder: _built(checkout, folder))
        target = checkout / _extension_folder()
        target.mkdir(parents=True, exist_ok=True)
        for library in extension.iterdir():
            if not (target / library.name).exists():
                _once(target / library.name, lambda path, library=library: shutil.copy2(library, path))  # type: ignore[misc]


def workspace_root() -> Path:
    """Where ``prepare`` makes workspaces: a folder of porter's cache."""
    return default_cache() / "demo"


def require_packages() -> None:
    """Raise MissingPackagesError where a package of the engine is missing."""
    missing = sorted(dist for module, dist in NEEDED.items() if importlib.util.find_spec(module) is None)
    if missing:
        raise MissingPackagesError(
            f"the engine needs packages that are not installed: {', '.join(missing)}",
            fix="pip install 'porter[torch,engine]'",
        )


def _once(target: Path, make: Callable[[Path], object]) -> None:
    """Make ``target`` beside itself, then rename it into place. What a killed run left there is removed first."""
    for rest in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(rest, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        made = Path(folder) / "made"
        make(made)
        made.rename(target)


def _applied(upstream: Path, files: Mapping[str, bytes], folder: Path) -> None:
    from porter.seams import api

    shutil.copytree(upstream, folder)
    api.apply(api.plan(folder, files))


def _built(checkout: Path, folder: Path) -> None:
    """Upstream's own command, in a copy, so that the checkout holds no build files."""
    with tempfile.TemporaryDirectory(prefix="porter-demo-build-") as temporary:
        copy = Path(temporary) / "deepinfer"
        shutil.copytree(checkout, copy)
        environment = Workspace(copy, copy).environment()
        environment["MAX_JOBS"] = str(min(2, os.cpu_count() or 1))
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        done = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        libraries = sorted((copy / _extension_folder()).glob("_C.*.so"))
        if done.returncode or not libraries:
            tail = "\n".join(done.stdout.splitlines()[-_LOG_LINES:])
            raise BuildError(
                f"the engine's extension did not build (exit code {done.returncode}):\n{tail}",
                fix="install a C++20 compiler (GCC 12 or later), and run the same command again",
            )
        folder.mkdir()
        for library in libraries:
            shutil.copy2(library, folder)


def _extension_folder() -> str:
    return f"deepinfer/_so/neuron-{platform.machine()}"


def _sources_of_extension(checkout: Path) -> Mapping[str, bytes]:
    paths = [*(checkout / "csrc").rglob("*"), checkout / "setup.py", checkout / "setup_neuron.py"]
    found = {path.relative_to(checkout).as_posix(): path.read_bytes() for path in paths if path.is_file()}
    return {**found, "/python": _interpreter().encode()}


def _interpreter() -> str:
    """What a built extension depends on beside its sources: the interpreter and torch."""
    from importlib.metadata import version

    return f"{sys.implementation.cache_tag} {platform.machine()} torch {version('torch')}"


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
