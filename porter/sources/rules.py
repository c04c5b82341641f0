"""What of an archive is unpacked, and how much of it."""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

# Moves when unpacking changes, so that trees unpacked by an older porter are made anew.
UNPACK_VERSION = 1
SUFFIXES = (
    ".py", ".pyi", ".pyx", ".pxd", ".pxi",
    ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inl", ".cu", ".cuh", ".asc", ".mm",
    ".md", ".rst", ".txt", ".toml", ".cfg", ".ini", ".in", ".json", ".typed",
)  # fmt: skip
NAMES = (
    "LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "AUTHORS*", "README*", "METADATA", "RECORD",
    "WHEEL", "PKG-INFO", "VERSION",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold. Sizes are in bytes.

    ``archive_bytes``: the archive itself. ``total_bytes``: all members together, unpacked or not. ``file_bytes``: one
    unpacked file. ``members``, ``links``: how many. ``ratio``: unpacked to packed size, asked once more than
    ``ratio_floor`` bytes were met, since small text packs to almost nothing.
    """

    archive_bytes: int = 2 << 30
    total_bytes: int = 4 << 30
    file_bytes: int = 64 << 20
    members: int = 50_000
    links: int = 500
    ratio: int = 100
    ratio_floor: int = 32 << 20


@dataclass(frozen=True)
class UnpackRules:
    """What to unpack: files of these suffixes (lower case) or names (shell patterns), within limits."""

    limits: Limits = field(default_factory=Limits)
    suffixes: tuple[str, ...] = SUFFIXES
    names: tuple[str, ...] = NAMES

    def wants(self, path: str) -> bool:
        """Is the file at this POSIX path one to unpack?"""
        name = posixpath.basename(path)
        suffix = posixpath.splitext(name)[1].lower()
        return suffix in self.suffixes or any(fnmatchcase(name, pattern) for pattern in self.names)

    @cached_property
    def digest(self) -> str:
        """Short digest of the rules: part of an unpacked folder's identity."""
        text = json.dumps([UNPACK_VERSION, asdict(self.limits), sorted(self.suffixes), sorted(self.names)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


DEFAULT_RULES = UnpackRules()
