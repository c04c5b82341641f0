"""From what a source is to the folder that holds it: cache, index, unpacking."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from porter.errors import HashMismatchError, OfflineError
from porter.sources.archive import is_archive, unpack, unpacked_tree
from porter.sources.cache import Cache, cache_errors, default_cache, sha256_of
from porter.sources.choice import mismatch, preference
from porter.sources.index import PipSettings, read_settings
from porter.sources.layout import sdist_layout, version_of, wheel_layout
from porter.sources.path import locate, tree_digest
from porter.sources.progress import Progress, QuietProgress
from porter.sources.rules import DEFAULT_RULES, UnpackRules
from porter.sources.spec import (
    DistributionSpec,
    PathSpec,
    SourceRecord,
    SourceSpec,
    record_for,
)

if TYPE_CHECKING:
    from porter.sources.distribution import Candidate, Index

_FETCH = "run `porter sync` without --offline once"


@dataclass(frozen=True)
class ResolvedSource:
    """A source that can be read.

    ``version``: normalized, "unknown" for a folder that states none. ``filename`` and ``sha256``: of the archive; for a
    folder None and the digest of its tree. ``root``: the folder that holds the packages; ``package_dirs``: their POSIX
    paths relative to it. ``top``: the source tree's own folder (C++ sources and metadata), ``root`` or above it.
    """

    name: str
    version: str
    kind: Literal["distribution", "path"]
    filename: str | None
    sha256: str
    root: Path
    package_dirs: tuple[str, ...]
    top: Path


def resolve(
    spec: SourceSpec,
    *,
    lock_record: SourceRecord | None = None,
    offline: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
    settings: PipSettings | None = None,
    rules: UnpackRules = DEFAULT_RULES,
) -> ResolvedSource:
    """Make a source readable, fetching and unpacking it where the cache does not hold it yet.

    Parameters:
        spec: which source.
        lock_record: what porter.lock says of it; counts only while it is about the same distribution and version.
        offline: use the cache alone.
        cache: the cache's root; ``default_cache()`` if not given.
        progress: shows downloads and unpacking; nothing is shown if not given.
        settings: which index; pip's configuration if not given.
        rules: what to unpack.

    Raises:
        OfflineError: offline, and the cache does not hold it.
        DistributionNotFoundError: not on the index.
        HashMismatchError: not the archive that the lock or the index states.
        ArchiveError: not an archive that can be unpacked safely.
        ConfigError: pip's configuration cannot be read.
        SourceError: no such folder, no package in it, no connection, no room in the cache.
    """
    if isinstance(spec, PathSpec):
        found = locate(spec)
        sha256 = tree_digest(spec.path, rules)
        return ResolvedSource(
            spec.name, version_of(found), "path", None, sha256, found.root, found.package_dirs, found.top
        )
    work = _Distribution(
        spec,
        record_for(spec, lock_record),
        Cache(cache if cache is not None else default_cache()),
        progress if progress is not None else QuietProgress(),
        settings,
        rules,
    )
    return work.cached() if offline else work.fetched()


@dataclass(frozen=True)
class _Distribution:
    """One distribution on its way into the cache."""

    spec: DistributionSpec
    record: SourceRecord | None
    cache: Cache
    progress: Progress
    settings: PipSettings | None
    rules: UnpackRules

    @property
    def key(self) -> str:
        return f"{self.spec.distribution}-{self.spec.version}"

    def archive(self, filename: str, sha256: str) -> Path:
        return self.cache.archive(self.spec.distribution, self.spec.version, sha256, filename)

    def folder(self, sha256: str) -> Path:
        return self.cache.unpacked(self.spec.distribution, self.spec.version, sha256, self.rules.digest)

    def ready(self, filename: str, sha256: str) -> ResolvedSource | None:
        """The source if it is unpacked, whole and untouched. Writes nothing."""
        tree = unpacked_tree(self.folder(sha256), sha256=sha256, rules=self.rules)
        return self.result(filename, sha256, tree) if tree is not None else None

    def result(self, filename: str, sha256: str, tree: Path) -> ResolvedSource:
        read = wheel_layout if filename.endswith(".whl") else sdist_layout
        found = read(tree, self.spec.package_dirs, filename)
        return ResolvedSource(
            self.spec.name,
            self.spec.version,
            "distribution",
            filename,
            sha256,
            found.root,
            found.package_dirs,
            found.top,
        )

    def cached(self) -> ResolvedSource:
        """From the cache alone."""
        with cache_errors(self.cache.root):
            known = self._recorded() if self.record is not None else self._lying_there()
        if known is None:
            wanted = self.record.filename if self.record is not None else self.spec.requirement
            raise OfflineError(f"the cache does not hold {wanted}", path=str(self.cache.root), fix=_FETCH)
        filename, sha256 = known
        if found := self.ready(filename, sha256):
            return found
        with self.cache.hold(self.key, self.progress):
            return self.ready(filename, sha256) or self._unpack(filename, sha256, self._checked(filename, sha256))

    def _recorded(self) -> tuple[str, str] | None:
        record = self.record
        assert record is not None
        there = self.archive(record.filename, record.sha256).is_file() or self.folder(record.sha256).is_dir()
        return (record.filename, record.sha256) if there else None

    def _lying_there(self) -> tuple[str, str] | None:
        folder = self.cache.archives(self.spec.distribution, self.spec.version)
        files = [path for path in folder.glob("*/*") if path.is_file() and is_archive(path.name)]
        best = min(files, key=lambda path: (preference(path.name), path.parent.name), default=None)
        return (best.name, best.parent.name) if best is not None else None

    def _checked(self, filename: str, sha256: str) -> Path:
        """The cached archive, its digest verified."""
        path = self.archive(filename, sha256)
        if not path.is_file():
            raise OfflineError(f"the cache does not hold {filename}", path=str(self.cache.root), fix=_FETCH)
        with cache_errors(path):
            found = sha256_of(path)
        if found != sha256:
            raise HashMismatchError(
                f"the cached archive is damaged: expected sha256 {sha256}, found {found}", path=str(path), fix=_FETCH
            )
        return path

    def fetched(self) -> ResolvedSource:
        """From the cache, or else from the index."""
        with ExitStack() as stack:
            candidate: Candidate | None = None
            known = (self.record.filename, self.record.sha256) if self.record is not None else None
            if known is None:
                candidate = self._index(stack).candidate(self.spec, None)
                known = (candidate.filename, candidate.sha256) if candidate.sha256 else None
            if known and (found := self.ready(*known)):
                return found
            with self.cache.hold(self.key, self.progress):
                if known and (found := self.ready(*known)):
                    return found
                if known and (path := self._intact(*known)) is not None:
                    return self._unpack(*known, path)
                index = self._index(stack)
                return self._download(index, candidate or index.candidate(self.spec, self.record))

    def _index(self, stack: ExitStack) -> Index:
        # unearth and its HTTP client take longer to import than a warm run takes in all.
        from porter.sources.distribution import Index

        return stack.enter_context(Index(self.settings if self.settings is not None else read_settings()))

    def _intact(self, filename: str, sha256: str) -> Path | None:
        path = self.archive(filename, sha256)
        with cache_errors(path):
            return path if path.is_file() and sha256_of(path) == sha256 else None

    def _download(self, index: Index, candidate: Candidate) -> ResolvedSource:
        expected = self.record.sha256 if self.record is not None else None
        folder = self.cache.archives(self.spec.distribution, self.spec.version)
        downloading = index.download(candidate, folder=folder, limits=self.rules.limits, progress=self.progress)
        with downloading as (received, sha256):
            if expected is not None and sha256 != expected:
                raise mismatch(candidate.filename, expected=expected, found=sha256)
            path = self.archive(candidate.filename, sha256)
            with cache_errors(path):
                path.parent.mkdir(exist_ok=True)
                os.replace(received, path)
        return self._unpack(candidate.filename, sha256, path)

    def _unpack(self, filename: str, sha256: str, path: Path) -> ResolvedSource:
        folder = self.folder(sha256)
        with cache_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        tree = unpack(path, folder, sha256=sha256, progress=self.progress, rules=self.rules)
        return self.result(filename, sha256, tree)
