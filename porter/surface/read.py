"""One source, read from its unpacked folder into surfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from porter.config import ENGINE
from porter.sources.progress import Progress, QuietProgress
from porter.surface.model import BindingFacts, ModuleFacts, Surface, Symbol

type Bindings = Mapping[str, Sequence[BindingFacts]]


def read_surfaces(
    source: str, root: Path, *, progress: Progress, declarations: Path | None = None
) -> tuple[list[Surface], tuple[str, ...]]:
    """Surfaces of a source, and (for the engine) the vendor names that it uses.

    Parameters:
        source: ``deepinfer`` or a vendor package.
        root: folder that holds the top package.
        declarations: folder of ``<package>/<module>.pyi`` files that declare what C++ binds and no source tells.

    Raises:
        UnreadableUpstreamError: files that cannot be read, all of them listed.
    """
    return _engine(root, progress) if source == ENGINE else (_vendor(source, root, progress, declarations), ())


def read_excerpts(
    source: str, root: Path, symbols: Sequence[Symbol], *, declarations: Path | None = None
) -> Mapping[str, str]:
    """Upstream text behind each of a source's symbols, by symbol id (see ``surface/excerpt.py``).

    Raises:
        UnreadableUpstreamError: files that cannot be read, all of them listed.
    """
    from porter.surface.excerpt import excerpts

    facts = _facts(root, source, QuietProgress())
    bindings = {} if source == ENGINE else _bindings(source, root, facts, declarations)
    return excerpts(source, root, facts, bindings, symbols)


def _facts(root: Path, package: str, progress: Progress) -> Mapping[str, ModuleFacts]:
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


def _vendor(package: str, root: Path, progress: Progress, declarations: Path | None) -> list[Surface]:
    from porter.surface.link import link_package

    facts = _facts(root, package, progress)
    return [link_package(package, package, root, facts, _bindings(package, root, facts, declarations))]


def _bindings(package: str, root: Path, facts: Mapping[str, ModuleFacts], declarations: Path | None) -> Bindings:
    """What C++ binds, by module: from its sources; where they do not say, from stubs, upstream's own before ours."""
    from porter.surface.link import extension_modules
    from porter.surface.pybind import read_extension
    from porter.surface.pyi import declared, read_stub

    found = {}
    for module in extension_modules(package, root, facts):
        bindings = read_extension(root, module)
        bindings = declared(bindings, read_stub(root, module))
        if declarations is not None:
            bindings = declared(
                bindings, read_stub(declarations, module, label=f"{declarations.parent.name}/{declarations.name}/")
            )
        found[module] = bindings
    return found
