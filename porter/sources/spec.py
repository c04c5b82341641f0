"""What a source is: a distribution ``name==version``, or a path.

Plain data and the parser of its text form, as porter.toml and ``--vendor NAME=PATH`` write it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from porter.errors import ConfigError, LockError, PorterError

# Of an archive: letters that no file system takes for anything else.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DistributionSpec:
    """A pinned distribution.

    ``name``: porter's name of the source (``deep_gemm``). ``distribution``: normalized project name
    (``deepinfer-gemm``). ``version``: normalized version. ``package_dirs``: the packages it must hold, as POSIX paths
    relative to its root (``deep_gemm``); empty to discover them.
    """

    name: str
    distribution: str
    version: str
    package_dirs: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """``distribution==version``."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class PathSpec:
    """A folder that the user gives: a checkout, an unpacked archive, or the package's own folder."""

    name: str
    path: Path
    package_dirs: tuple[str, ...] = ()


type SourceSpec = DistributionSpec | PathSpec


class SourceRecord(Protocol):
    """What porter.lock says of a source; ``porter.lock.LockedSource`` is one.

    ``filename`` and ``sha256`` are those of the archive; ``filename`` is "" for a folder.
    """

    @property
    def requirement(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def filename(self) -> str: ...
    @property
    def sha256(self) -> str: ...


def parse_source(
    name: str,
    text: str,
    *,
    base: Path,
    package_dirs: tuple[str, ...] = (),
    error: type[PorterError] = ConfigError,
    where: str | None = None,
) -> SourceSpec:
    """Read a source's text form.

    Text that holds a path separator, starts with ``.`` or ``~``, or names an existing folder is a path (relative to
    ``base``, ``~`` expanded); anything else must be ``distribution==version``. Whether a path exists is not asked here.

    Parameters:
        name: porter's name of the source.
        text: ``deepinfer==0.1.0``, ``../deepinfer``, ``/src/deepinfer``.
        base: folder that relative paths start from.
        package_dirs: packages that the source must hold.
        error: class raised, ConfigError for porter.toml, UsageError for the command line.
        where: file that the text stands in, for the message.

    Raises:
        error: empty text, not pinned by exactly one ``==``, extras, markers or a URL.
    """
    stripped = text.strip()
    if not stripped:
        raise error(f"source {name!r} is empty", path=where, fix=_FIX)
    if _looks_like_path(stripped) or (base / stripped).is_dir():
        return PathSpec(name, Path(os.path.abspath(base / Path(stripped).expanduser())), package_dirs)
    try:
        requirement = Requirement(stripped)
    except InvalidRequirement as cause:
        message = f"source {name!r}: {stripped!r} is neither `name==version` nor a folder"
        raise error(message, path=where, fix=_FIX) from cause
    if requirement.url or requirement.extras or requirement.marker:
        raise error(f"source {name!r}: {stripped!r} may have no URL, extras or markers", path=where, fix=_FIX)
    pins = [specifier for specifier in requirement.specifier if specifier.operator == "=="]
    if len(requirement.specifier) != 1 or len(pins) != 1:
        raise error(f"source {name!r}: {stripped!r} is not pinned by exactly one `==`", path=where, fix=_FIX)
    try:
        version = str(Version(pins[0].version))
    except InvalidVersion as cause:
        raise error(f"source {name!r}: {pins[0].version!r} is not one exact version", path=where, fix=_FIX) from cause
    return DistributionSpec(name, canonicalize_name(requirement.name), version, package_dirs)


_FIX = "write it as `name==version`, or as the path of a folder"


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "~", "/")) or ("/" in text and " @ " not in text and "://" not in text)


def record_for(spec: DistributionSpec, record: SourceRecord | None) -> SourceRecord | None:
    """``record`` if it is about this very distribution, version and a file; None when porter.toml has moved on.

    Raises:
        LockError: the file name or the digest is not one (both become paths in the cache).
    """
    if record is None or not record.filename or not record.sha256:
        return None
    try:
        requirement = Requirement(record.requirement)
        same_project = canonicalize_name(requirement.name) == spec.distribution
        same = same_project and Version(record.version) == Version(spec.version)
    except (InvalidRequirement, InvalidVersion):
        return None
    if not same:
        return None
    if not PLAIN_NAME.fullmatch(record.filename) or not _SHA256.fullmatch(record.sha256):
        raise LockError(
            f"source {spec.name!r}: {record.filename!r} with sha256 {record.sha256!r} is no archive",
            path="porter.lock",
            fix="restore porter.lock from version control, or delete it and run `porter sync`",
        )
    return record
