"""Finding a distribution on the index, choosing one of its files, downloading it into the cache.

The choice is the same whatever interpreter and platform run porter: the file is read, never installed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from packaging.requirements import Requirement
from packaging.version import Version
from unearth import Link
from unearth.fetchers import PyPIClient
from unearth.preparer import HTTPErrors

from porter.errors import (
    ArchiveError,
    DistributionNotFoundError,
    HashMismatchError,
    SourceError,
)
from porter.sources.archive import is_archive
from porter.sources.cache import cache_errors
from porter.sources.choice import RELOCK, mismatch, preference
from porter.sources.index import PipSettings, open_client, open_finders
from porter.sources.progress import Progress
from porter.sources.rules import Limits
from porter.sources.spec import PLAIN_NAME, DistributionSpec, SourceRecord

_CHUNK = 1 << 18
_PARTIAL = ".download-"
# Servers may offer to compress; an archive must arrive as it is.
_HEADERS = {"Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Candidate:
    """A file that the index offers. ``hashes``: (algorithm, hex digest) as the index states them, sorted."""

    filename: str
    hashes: tuple[tuple[str, str], ...] = ()
    yanked: bool = False
    link: Link | None = field(default=None, compare=False, repr=False)

    @property
    def sha256(self) -> str | None:
        """The sha256 that the index states, if it does."""
        return dict(self.hashes).get("sha256")


class Index:
    """The index, for as long as the context lasts; connected to when first asked."""

    def __init__(self, settings: PipSettings) -> None:
        self._settings = settings
        self._client: PyPIClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def client(self) -> PyPIClient:
        """The HTTP client."""
        if self._client is None:
            self._client = open_client(self._settings)
        return self._client

    def candidate(self, spec: DistributionSpec, record: SourceRecord | None) -> Candidate:
        """The file to read; see ``find`` and ``choose`` for what they raise."""
        return choose(find(spec, self._settings, self.client), spec, record)

    def download(
        self, candidate: Candidate, *, folder: Path, limits: Limits, progress: Progress
    ) -> AbstractContextManager[tuple[Path, str]]:
        """Download a file; see ``download``."""
        return download(candidate, client=self.client, folder=folder, limits=limits, progress=progress)


def find(spec: DistributionSpec, settings: PipSettings, client: PyPIClient) -> tuple[Candidate, ...]:
    """Every file of that distribution and version, places in pip's order.

    Raises:
        DistributionNotFoundError: there is none, and every place answered.
        SourceError: there is none, and a place did not answer.
    """
    requirement, version = Requirement(spec.requirement), Version(spec.version)
    found: list[Candidate] = []
    failures: list[str] = []
    for finder in open_finders(settings, client):
        with _warnings(failures):
            try:
                matches = finder.find_matches(requirement)
                # `==1.0` matches `1.0+local` too; here a version is one version.
                found += _candidates(p.link for p in matches if p.version and Version(p.version) == version)
            # The place answers with whatever it likes; one bad place must not hide the others.
            except Exception as error:
                url = finder.sources[0]["url"]
                shown = Link(url).redacted
                failures.append(f"{shown}: {_reason(error).replace(url, shown)}")
    if found:
        return tuple(found)
    unreached = [text for text in failures if "Client Error(404)" not in text and "FileNotFoundError" not in text]
    if unreached:
        listed = "".join(f"\n  {text}" for text in dict.fromkeys(unreached))
        raise SourceError(
            f"{spec.requirement} was not found, and not every place could be asked:{listed}",
            fix="check the network and pip's configuration (`pip config list`), then run `porter sync` again",
        )
    raise DistributionNotFoundError(
        f"no file of {spec.requirement} on the index that pip is configured with",
        fix="correct the version in porter.toml, or the index in pip's configuration (`pip config list`)",
    )


def _candidates(links: Iterable[Link]) -> Iterator[Candidate]:
    for link in links:
        folder = link.is_file and link.file_path.is_dir()
        if is_archive(link.filename) and PLAIN_NAME.fullmatch(link.filename) and not folder:
            hashes = {name: values[0].lower() for name, values in (link.hash_option or {}).items() if values}
            yield Candidate(link.filename, tuple(sorted(hashes.items())), link.is_yanked, link)


class _Collected(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        self.into.append(record.getMessage())


@contextmanager
def _warnings(into: list[str]) -> Iterator[None]:
    """Collect what unearth logs about pages that it could not use."""
    logger = logging.getLogger("unearth.collector")
    handler = _Collected(into)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def choose(candidates: Sequence[Candidate], spec: DistributionSpec, record: SourceRecord | None) -> Candidate:
    """The one file to read.

    The file that the lock names, told by its digest; without a lock the one preferred (see ``choice.preference``), a
    withdrawn one last; of equals, the one from the first place.

    Raises:
        HashMismatchError: the index states another sha256 for the locked file.
        DistributionNotFoundError: the index no longer has the locked file.
    """
    if record is None:
        return min(candidates, key=lambda candidate: (candidate.yanked, preference(candidate.filename)))
    same_bytes = [candidate for candidate in candidates if candidate.sha256 == record.sha256]
    same_name = [candidate for candidate in candidates if candidate.filename == record.filename]
    unstated = [candidate for candidate in same_name if candidate.sha256 is None]
    if chosen := [*same_bytes, *unstated]:
        return chosen[0]
    if same_name:
        raise mismatch(record.filename, expected=record.sha256, found=f"{same_name[0].sha256}, by the index")
    others = ", ".join(sorted(candidate.filename for candidate in candidates))
    raise DistributionNotFoundError(
        f"porter.lock names {record.filename} for {spec.requirement}, which the index does not have; it has {others}",
        fix=RELOCK,
    )


@contextmanager
def download(
    candidate: Candidate, *, client: PyPIClient, folder: Path, limits: Limits, progress: Progress, tries: int = 3
) -> Iterator[tuple[Path, str]]:
    """Download a file under a temporary name in ``folder``; gives its path and sha256, and removes it at the end.

    The caller moves the file to where it belongs, and holds the cache's lock on ``folder``: what a killed download left
    there is removed. The file is flushed to the disk and agrees with every digest that the index states.

    Raises:
        SourceError: the connection fails ``tries`` times, the server refuses, or the folder cannot be written.
        ArchiveError: larger than the limit.
        HashMismatchError: not what the index states.
    """
    with cache_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PARTIAL}*"):
            left.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(prefix=_PARTIAL, dir=folder)
        os.close(handle)
    path = Path(name)
    try:
        for attempt in range(1, tries + 1):
            try:
                digest = _receive(candidate, client, path, limits, progress)
                break
            except HTTPErrors as error:
                if attempt == tries:
                    raise SourceError(
                        f"the download failed: {_reason(error)}",
                        path=candidate.filename,
                        fix="check the network, then run `porter sync` again",
                    ) from error
        yield path, digest
    finally:
        path.unlink(missing_ok=True)


def _receive(candidate: Candidate, client: PyPIClient, path: Path, limits: Limits, progress: Progress) -> str:
    link = candidate.link
    assert link is not None
    digests = {"sha256": hashlib.sha256()}
    digests.update({name: hashlib.new(name) for name, _ in candidate.hashes if name in hashlib.algorithms_guaranteed})
    received = 0
    with (
        client.get_stream(link.normalized, headers=_HEADERS) as response,
        progress.task(f"downloading {candidate.filename}", unit="bytes") as task,
    ):
        if response.status_code >= 400:
            raise SourceError(
                f"the download failed: the server answered {response.status_code}",
                path=candidate.filename,
                fix="run `porter sync` again; if it goes on, check the index in pip's configuration",
            )
        length = response.headers.get("Content-Length", "")
        task.resize(int(length) if length.isdigit() else None)
        chunks = response.iter_bytes(chunk_size=_CHUNK)
        with cache_errors(path), path.open("wb") as out:
            for chunk in chunks:
                received += len(chunk)
                if received > limits.archive_bytes:
                    raise ArchiveError(
                        f"is more than the {limits.archive_bytes} bytes allowed",
                        path=candidate.filename,
                        fix="check that the index gives the right file",
                    )
                for digest in digests.values():
                    digest.update(chunk)
                out.write(chunk)
                task.advance(len(chunk))
            out.flush()
            os.fsync(out.fileno())
    for name, stated in candidate.hashes:
        if name in digests and digests[name].hexdigest() != stated:
            raise HashMismatchError(
                f"{name} is not what the index states: expected {stated}, found {digests[name].hexdigest()}",
                path=candidate.filename,
                fix="run `porter sync` again; if it goes on, the index or the line to it is at fault",
            )
    return digests["sha256"].hexdigest()
