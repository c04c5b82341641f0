"""The throw-away tree in which upstream's tests run: upstream's Python, the emitted backend laid over it, sizes shrunk.

No file of upstream is edited but for declared size substitutions, and the trees it is made from are never written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from porter.verify.errors import WorkspaceError
from porter.verify.shrink import Shrink, shrink_folder

OPS = "deepinfer/model_executor/layers/tilelang_ops"
BACKEND = f"{OPS}/neuron"
VENDOR = "deepinfer/neuron_ops/vendor"
_PACKAGES = ("deepinfer", "deep_cluster")
_FILES = ("pyproject.toml",)
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".pytest_cache", ".git")


@dataclass(frozen=True)
class Workspace:
    """A prepared tree. ``platform``: ``neuron`` when the tree brings its own Neuron platform, else ``patched``.

    ``shrunk``: the interface modules whose sizes were changed.
    """

    root: Path
    platform: str
    shrunk: tuple[str, ...] = ()

    @property
    def ops(self) -> Path:
        """Folder of upstream's interface modules, which hold the tests."""
        return self.root / OPS

    @property
    def backend(self) -> Path:
        """Folder of the backend under test."""
        return self.root / BACKEND


def _python_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _lay_over(source: Path, target: Path) -> None:
    for path in _python_files(source):
        copy = target / path.relative_to(source)
        if copy.exists():
            if copy.read_bytes() == path.read_bytes():
                continue
            raise WorkspaceError(
                "the emitted tree would replace a file of upstream",
                path=str(path.relative_to(source)),
                fix="emit new files only; edits of upstream's own files are seams, applied to a checkout",
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def brings_platform(root: Path) -> bool:
    """Does the tree define its own ``PlatformNeuron`` and choose it in ``deepinfer/platform.py``?"""
    package = root / "deepinfer"
    chooser = package / "platform.py"
    if not chooser.is_file() or "PlatformNeuron" not in chooser.read_text(encoding="utf-8"):
        return False
    return any(
        "class PlatformNeuron" in path.read_text(encoding="utf-8")
        for path in _python_files(package)
        if path.suffix == ".py"
    )


def check_upstream(upstream: Path) -> None:
    """Is this an unpacked DeepInfer?

    Raises:
        WorkspaceError: a folder or file that the tests need is missing.
    """
    for name in (*_PACKAGES, *_FILES, OPS, f"{OPS}/conftest.py", f"{OPS}/ops.py"):
        if not (upstream / name).exists():
            raise WorkspaceError(
                f"no {name} in the upstream folder", path=str(upstream), fix="name the root of an unpacked deepinfer"
            )


def make_workspace(root: Path, upstream: Path, overlay: Path | None, shrinks: Iterable[Shrink] = ()) -> Workspace:
    """Build the tree at ``root``, which must not hold anything yet.

    Args:
        root: folder to make.
        upstream: unpacked deepinfer, read only.
        overlay: the emitted tree (holds ``deepinfer/...``), laid over upstream; None when upstream holds it already.
        shrinks: size substitutions; empty for upstream's own sizes.

    Raises:
        WorkspaceError: ``root`` is in use, upstream or the overlay lacks what is needed, or they collide.
        ShrinkError: a substitution does not fit.
    """
    check_upstream(upstream)
    if root.exists() and any(root.iterdir()):
        raise WorkspaceError("the folder for the throw-away tree is not empty", path=str(root), fix="name a new folder")
    root.mkdir(parents=True, exist_ok=True)
    for name in _PACKAGES:
        shutil.copytree(upstream / name, root / name, ignore=_IGNORED)
    for name in _FILES:
        shutil.copyfile(upstream / name, root / name)
    if overlay is not None:
        if not (overlay / BACKEND).is_dir():
            raise WorkspaceError(f"no {BACKEND} in the emitted tree", path=str(overlay), fix="run `porter sync`")
        _lay_over(overlay, root)
    if not (root / BACKEND).is_dir():
        raise WorkspaceError(
            f"no {BACKEND}: there is no backend to judge", path=str(upstream), fix="name the emitted tree"
        )
    shrunk = shrink_folder(root / OPS, shrinks)
    return Workspace(root=root, platform="neuron" if brings_platform(root) else "patched", shrunk=shrunk)


def stage_overrides(overrides: Path, root: Path) -> Path:
    """An overlay made straight from hand-written overrides, to judge bodies before they are emitted. Gives ``root``.

    Args:
        overrides: folder with ``tilelang_ops/*.py`` and ``shared/<package>/``.
        root: folder to fill.

    Raises:
        WorkspaceError: the folder has no ``tilelang_ops``.
    """
    bodies = overrides / "tilelang_ops"
    if not bodies.is_dir():
        raise WorkspaceError("no tilelang_ops in the overrides folder", path=str(overrides))
    shutil.copytree(bodies, root / BACKEND, ignore=_IGNORED)
    (root / BACKEND / "__init__.py").touch()
    shared = overrides / "shared"
    if shared.is_dir():
        shutil.copytree(shared, root / VENDOR, ignore=_IGNORED)
    return root


def override_origins(overrides: Path) -> dict[str, str]:
    """Path in a tree that ``stage_overrides`` laid over, to the override, relative to the overrides' parent."""
    parts = ((overrides / "tilelang_ops", BACKEND), (overrides / "shared", VENDOR))
    return {
        f"{target}/{path.relative_to(source).as_posix()}": f"{overrides.resolve().name}/{path.relative_to(overrides).as_posix()}"
        for source, target in parts
        if source.is_dir()
        for path in _python_files(source)
    }
