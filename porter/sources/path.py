"""A source that is a folder: a checkout, an unpacked archive, or the package's own folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from porter.errors import SourceError
from porter.sources.cache import sha256_of
from porter.sources.layout import Layout, folder_layout
from porter.sources.rules import DEFAULT_RULES, UnpackRules
from porter.sources.spec import PathSpec

# Made by tools, not by people; below the top folder `build` and `dist` may be packages.
_MADE = frozenset({"__pycache__", "node_modules"})
_MADE_AT_TOP = frozenset({"build", "dist"})


def locate(spec: PathSpec) -> Layout:
    """Where the packages of that folder are.

    Raises:
        SourceError: there is no such folder, or it does not hold the packages.
    """
    if not spec.path.is_dir():
        why = "is a file, not a folder" if spec.path.exists() else "does not exist"
        raise SourceError(f"source {spec.name!r}: {why}", path=str(spec.path), fix="name an existing folder")
    try:
        return folder_layout(spec.path, spec.package_dirs, str(spec.path))
    except OSError as error:
        raise _unreadable(spec.path, error) from error


def tree_digest(folder: Path, rules: UnpackRules = DEFAULT_RULES) -> str:
    """Hex sha256 over the relative POSIX path and the sha256 of every file that porter could read, sorted by path.

    Hidden folders and what tools make (byte code, egg-info, build and dist) are left out, so that it moves with the
    sources alone. Linked files count by their content, linked folders do not count.

    Raises:
        SourceError: a file or folder cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(_files(folder, rules)):
        try:
            content = sha256_of(folder / path)
        except OSError as error:
            raise _unreadable(folder / path, error) from error
        digest.update(f"{path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(folder: Path, rules: UnpackRules) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise _unreadable(Path(error.filename or folder), error)

    for place, folders, names in os.walk(folder, onerror=fail):
        relative = PurePosixPath(Path(place).relative_to(folder).as_posix())
        top = not relative.parts
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _MADE
            and not name.endswith(".egg-info")
            and not (top and name in _MADE_AT_TOP)
        ]
        for name in names:
            if rules.wants(name) and (Path(place) / name).is_file():
                yield str(relative / name)


def _unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError(
        f"cannot be read: {error.strerror or error}", path=str(path), fix="correct its permissions, or remove it"
    )
