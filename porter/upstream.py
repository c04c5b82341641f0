"""Reading every source: resolve, read files into facts, link facts into surfaces, put it all into a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from porter import __version__
from porter.config import ENGINE, SOURCE_NAMES, VENDOR_PACKAGES, Config
from porter.errors import PorterError, UnreadableUpstreamError, UsageError
from porter.lock import Lock, LockedSource, black_version
from porter.sources.progress import Progress, QuietProgress
from porter.sources.resolve import ResolvedSource, resolve
from porter.sources.spec import SourceSpec, parse_source


@dataclass(frozen=True)
class Request:
    """Which upstream to read: porter.toml's, or folders named on the command line.

    ``upstream``: a checkout of the engine. ``vendor``: package name to folder. ``offline``: use the cache alone.
    """

    upstream: Path | None = None
    vendor: Mapping[str, Path] = field(default_factory=dict)
    offline: bool = False
    only: tuple[str, ...] = SOURCE_NAMES

    @property
    def overridden(self) -> bool:
        """True when the command line replaces any source."""
        return self.upstream is not None or bool(self.vendor)


@dataclass(frozen=True)
class Upstream:
    """What was read: the lock it makes, and where each source lies unpacked."""

    lock: Lock
    sources: Mapping[str, ResolvedSource]


def specs(config: Config, request: Request) -> Mapping[str, SourceSpec]:
    """Each source's spec, the command line's folders in place of porter.toml's pins.

    Raises:
        ConfigError: a pin in porter.toml is not of the form. UsageError: an unknown package in ``vendor``.
    """
    table: dict[str, SourceSpec] = {}
    for name in request.vendor:
        if name not in VENDOR_PACKAGES:
            raise UsageError(f"no vendor package named {name!r}", fix=f"use one of: {', '.join(VENDOR_PACKAGES)}")
    for name in request.only:
        given = request.upstream if name == ENGINE else request.vendor.get(name)
        packages = (name,)
        if given is not None:
            table[name] = parse_source(
                name, str(given.absolute()), base=Path.cwd(), package_dirs=packages, error=UsageError
            )
        else:
            table[name] = parse_source(
                name, config.sources[name], base=config.root, package_dirs=packages, where=config.file
            )
    return table


def resolve_sources(
    config: Config, request: Request, old: Lock | None, *, cache: Path | None = None, progress: Progress | None = None
) -> Mapping[str, ResolvedSource]:
    """Find, fetch and unpack every source.

    Raises:
        SourceError: a source cannot be had.
    """
    shown = progress or QuietProgress()
    return {
        name: resolve(
            spec, lock_record=old.source(name) if old else None, offline=request.offline, cache=cache, progress=shown
        )
        for name, spec in specs(config, request).items()
    }


def read_upstream(
    config: Config, request: Request, old: Lock | None, *, cache: Path | None = None, progress: Progress | None = None
) -> Upstream:
    """Read every source into a new lock.

    Raises:
        SourceError: a source cannot be had. UnreadableUpstreamError: files that cannot be read, all of them listed.
    """
    from porter.surface.read import read_surfaces

    resolved = resolve_sources(config, request, old, cache=cache, progress=progress)
    surfaces = []
    engine_names: tuple[str, ...] = ()
    causes: list[PorterError] = []
    for name, source in resolved.items():
        try:
            found, names = read_surfaces(
                name, source.root, progress=progress or QuietProgress(), declarations=config.declarations_path
            )
        except UnreadableUpstreamError as error:
            causes.extend(error.causes)
            continue
        surfaces.extend(found)
        engine_names = names or engine_names
    if causes:
        raise UnreadableUpstreamError(causes)
    locked = tuple(_locked(name, source, config, request) for name, source in resolved.items())
    lock = Lock(__version__, black_version(), locked, tuple(surfaces), engine_names, _declarations(config))
    return Upstream(lock, resolved)


def _declarations(config: Config) -> Mapping[str, str]:
    from porter.inputs import declaration_digests, override_digests

    return declaration_digests(override_digests(config.overrides_path))


def _locked(name: str, source: ResolvedSource, config: Config, request: Request) -> LockedSource:
    replaced = (request.upstream is not None) if name == ENGINE else name in request.vendor
    requirement = f"folder {source.version}" if replaced else config.sources[name]
    return LockedSource(name, requirement, source.version, source.filename or "", source.sha256)
