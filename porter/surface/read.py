"""One source, read from its unpacked folder into surfaces."""

from __future__ import annotations

from pathlib import Path

from porter.config import ENGINE
from porter.sources.progress import Progress
from porter.surface.model import Surface


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
    from porter.surface.backend import engine_imports, link_backend, link_references

    facts = _facts(root, ENGINE, progress)
    surfaces = [link_backend(root, facts, "asc"), link_backend(root, facts, "cuda"), link_references(root, facts)]
    return surfaces, tuple(engine_imports(root, facts))


def _vendor(package: str, root: Path, progress: Progress) -> list[Surface]:
    from porter.surface.link import extension_modules, link_package
    from porter.surface.pybind import read_extension

    facts = _facts(root, package, progress)
    bindings = {module: read_extension(root, module) for module in extension_modules(package, root, facts)}
    return [link_package(package, package, root, facts, bindings)]
