"""One source, read from its unpacked folder into surfaces."""

from __future__ import annotations

from pathlib import Path

from porter.config import ENGINE
from porter.sources.progress import Progress
from porter.surface.model import Surface

# Backends of the engine that are read: the first is emitted, the second is there for comparison.
BACKENDS = ("asc", "cuda")


def read_surfaces(source: str, root: Path, *, progress: Progress) -> tuple[list[Surface], tuple[str, ...]]:
    """Surfaces of a source, and (for the engine) the vendor names that it uses.

    Parameters:
        source: ``deepinfer`` or a vendor package.
        root: folder that holds the top package.

    Raises:
        UnreadableUpstreamError: files that cannot be read, all of them listed.
    """
    return _engine(root, progress) if source == ENGINE else (_vendor(source, root, progress), ())


def _facts(root: Path, package: str, progress: Progress):  # type: ignore[no-untyped-def]
    from porter.surface.reader import python_files, read_tree

    with progress.task(f"read {package}") as task:
        done = 0

        def show(now: int, total: int) -> None:
            nonlocal done
            task.resize(total)
            task.advance(now - done)
            done = now

        return read_tree(root, python_files(root / package), progress=show)


def _engine(root: Path, progress: Progress) -> tuple[list[Surface], tuple[str, ...]]:
    from porter.surface.backend import engine_imports, link_backend

    facts = _facts(root, ENGINE, progress)
    return [link_backend(root, facts, backend) for backend in BACKENDS], tuple(engine_imports(root, facts))


def _vendor(package: str, root: Path, progress: Progress) -> list[Surface]:
    from porter.surface.link import link_package

    facts = _facts(root, package, progress)
    return [link_package(package, package, root, facts, {})]
