"""Where the packages are inside an unpacked archive or a checkout, and which version it is, read from text alone."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.version import InvalidVersion, Version

from porter.errors import SourceError

UNKNOWN_VERSION = "unknown"
# Folders that may hold the packages of a source tree, nearest first.
_BASES = ("", "src", "python", "lib")
# Folders with an __init__.py beside the packages that are none of them.
_NOT_PACKAGES = frozenset({
    "bench", "benchmark", "benchmarks", "build", "ci", "csrc", "dist", "doc", "docs", "example", "examples", "scripts",
    "test", "testing", "tests", "third-party", "third_party", "tools",
})  # fmt: skip
_VERSION_LINE = re.compile(r"""^__version__\s*(?::\s*[\w.]+\s*)?=\s*(["'])(?P<version>[^"'\n]+)\1""", re.MULTILINE)


@dataclass(frozen=True)
class Layout:
    """``root``: folder that holds the packages. ``package_dirs``: their POSIX paths relative to it, as asked or sorted.

    ``top``: the source tree's own folder, where its metadata is.
    """

    root: Path
    package_dirs: tuple[str, ...]
    top: Path


def wheel_layout(tree: Path, package_dirs: tuple[str, ...], shown: str) -> Layout:
    """Packages of an unpacked wheel.

    Raises:
        SourceError: it does not hold them.
    """
    data = sorted(path for kind in ("purelib", "platlib") for path in tree.glob(f"*.data/{kind}"))
    return _layout(tree, [tree, *data], package_dirs, shown)


def sdist_layout(tree: Path, package_dirs: tuple[str, ...], shown: str) -> Layout:
    """Packages of an unpacked source archive, whose members stand in one folder.

    Raises:
        SourceError: it does not hold them.
    """
    inside = sorted(tree.iterdir())
    top = inside[0] if len(inside) == 1 and inside[0].is_dir() and not (inside[0] / "__init__.py").exists() else tree
    return _layout(top, [top / base for base in _BASES], package_dirs, shown)


def folder_layout(folder: Path, package_dirs: tuple[str, ...], shown: str) -> Layout:
    """Packages of a folder that the user named: a checkout, or the package itself.

    Raises:
        SourceError: it does not hold them.
    """
    bases = [folder / base for base in _BASES]
    itself = (folder / "__init__.py").is_file()
    if itself and package_dirs in ((), (folder.name,)) and not any(_holds(base, package_dirs) for base in bases):
        return Layout(folder.parent, (folder.name,), folder)
    return _layout(folder, bases, package_dirs, shown)


def _layout(top: Path, bases: Iterable[Path], package_dirs: tuple[str, ...], shown: str) -> Layout:
    for base in bases:
        if package_dirs:
            if _holds(base, package_dirs):
                return Layout(base, package_dirs, top)
        elif found := _discover(top, base):
            return Layout(base, found, top)
    wanted = " and ".join(repr(name) for name in package_dirs)
    raise SourceError(
        f"holds no Python package{' ' + wanted if wanted else ''}",
        path=shown,
        fix="name the folder that holds the package, or a distribution that does",
    )


def _holds(base: Path, package_dirs: tuple[str, ...]) -> bool:
    return bool(package_dirs) and all(_has_python(base / name) for name in package_dirs)


def _has_python(folder: Path) -> bool:
    return folder.is_dir() and (next(folder.glob("*.py"), None) or next(folder.rglob("*.py"), None)) is not None


def _discover(top: Path, base: Path) -> tuple[str, ...]:
    if not base.is_dir():
        return ()
    named = sorted({
        line.strip()
        for folder in (base, top)
        for record in sorted([*folder.glob("*.egg-info/top_level.txt"), *folder.glob("*.dist-info/top_level.txt")])
        for line in _text(record).splitlines()
        if line.strip().isidentifier() and _has_python(base / line.strip())
    })  # fmt: skip
    if named:
        return tuple(named)
    return tuple(
        sorted(
            path.name
            for path in base.iterdir()
            if path.name.isidentifier() and path.name not in _NOT_PACKAGES and (path / "__init__.py").is_file()
        )
    )


def version_of(layout: Layout) -> str:
    """The version that the tree states, normalized, or "unknown".

    From built metadata, then pyproject.toml, setup.cfg, ``__version__`` of a package, a VERSION file, and last an
    egg-info folder, which in a checkout may be old.
    """
    for text in _versions(layout):
        try:
            return str(Version(text))
        except InvalidVersion:
            continue
    return UNKNOWN_VERSION


def _versions(layout: Layout) -> Iterator[str]:
    top = layout.top
    for metadata in (top / "PKG-INFO", *sorted(top.glob("*.dist-info/METADATA"))):
        yield _header(metadata)
    try:
        project = tomllib.loads(_text(top / "pyproject.toml"))
        yield str(project.get("project", {}).get("version", ""))
    except (tomllib.TOMLDecodeError, AttributeError):
        pass
    config = ConfigParser(interpolation=None)
    try:
        config.read_string(_text(top / "setup.cfg"))
        yield config.get("metadata", "version", fallback="")
    except ConfigParserError:
        pass
    for package in layout.package_dirs:
        for name in ("__init__.py", "version.py", "_version.py", "__version__.py"):
            match = _VERSION_LINE.search(_text(layout.root / package / name))
            yield match["version"] if match else ""
    for folder in (top, *(layout.root / package for package in layout.package_dirs)):
        yield _text(folder / "VERSION").strip()
    for metadata in sorted([*top.glob("*.egg-info/PKG-INFO"), *layout.root.glob("*.egg-info/PKG-INFO")]):
        yield _header(metadata)


def _header(path: Path) -> str:
    return HeaderParser().parsestr(_text(path)).get("Version", "") or ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
