"""porter.lock: what the upstream offered when it was last read. Enough to check and to render without the upstream.

JSON, sorted, one entry a symbol, so that an upstream change is a readable diff. Line numbers are left out: they move
with every comment.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from porter import __version__
from porter.codec import Json, dumps, from_json, to_json
from porter.errors import LockError
from porter.surface.model import CallSite, Module, Surface, Symbol

LOCK_VERSION = 1
_SYNC = "run `porter sync`"


@dataclass(frozen=True)
class LockedSource:
    """A source as it was read: its requirement as porter.toml gives it, version and digest.

    ``filename`` and ``sha256`` are those of the archive; for a folder ``filename`` is "" and ``sha256`` digests its files.
    """

    name: str
    requirement: str
    version: str
    filename: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Lock:
    """The content of porter.lock.

    ``surfaces``: per surface name (``tilelang_ops.asc``, ``tilelang_ops.cuda``, ``tilelang_ops``, and each vendor package).
    ``engine_names``: vendor names that the engine imports or uses, sorted.
    ``declarations``: sha256 of each ``.pyi`` of overrides/ that was read beside the sources, by path below overrides/.
    """

    tool: str
    black: str
    sources: tuple[LockedSource, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    engine_names: tuple[str, ...] = ()
    declarations: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def symbols(self) -> Mapping[str, Symbol]:
        """Every symbol by id."""
        return {symbol.id: symbol for surface in self.surfaces for symbol in surface.symbols}

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """Every public path (ids and aliases) to the id it stands for."""
        table = {alias: symbol.id for symbol in self.symbols.values() for alias in symbol.aliases}
        for symbol in self.symbols.values():
            owner = self.symbols.get(symbol.owner)
            if owner is not None and owner.qualname == symbol.qualname.partition(".")[0]:
                member = symbol.id.removeprefix(owner.id)
                table.update({alias + member: symbol.id for alias in owner.aliases})
        table.update({identity: identity for identity in self.symbols})
        return table

    def surface(self, source: str) -> Surface | None:
        """The surface of that name."""
        return next((surface for surface in self.surfaces if surface.source == source), None)

    def source(self, name: str) -> LockedSource | None:
        """The record of that source."""
        return next((source for source in self.sources if source.name == name), None)


def black_version() -> str:
    """Version of the formatter that shapes the emitted files."""
    from importlib.metadata import version

    return version("black")


def write_lock(lock: Lock) -> str:
    """Text of porter.lock."""
    data: dict[str, Json] = {
        "version": LOCK_VERSION,
        "porter": lock.tool,
        "black": lock.black,
        "sources": {
            source.name: _without(to_json(source), "name") for source in sorted(lock.sources, key=lambda s: s.name)
        },
        "engine_names": [*sorted(lock.engine_names)],
        "declarations": dict(sorted(lock.declarations.items())),
        "surfaces": {
            surface.source: _surface_json(surface) for surface in sorted(lock.surfaces, key=lambda s: s.source)
        },
    }
    return dumps(data)


def _without(data: Json, *keys: str) -> Json:
    assert isinstance(data, dict)
    return {key: value for key, value in data.items() if key not in keys}


def _surface_json(surface: Surface) -> Json:
    sites = sorted(
        (dataclasses.replace(site, line=0) for site in surface.call_sites),
        key=lambda s: (s.factory, s.caller, repr(s.arguments), repr(s)),
    )
    return {
        "opaque": [*sorted(surface.opaque)],
        "modules": {module.name: _without(to_json(module), "name") for module in surface.modules},
        "call_sites": [to_json(site) for site in sites],
        "symbols": {
            symbol.id: _without(to_json(dataclasses.replace(symbol, line=0, source="")), "id", "line", "source")
            for symbol in sorted(surface.symbols, key=lambda s: s.id)
        },
    }


def read_lock(path: Path) -> Lock:
    """Read porter.lock.

    Raises:
        LockError: missing, not JSON, another format version, or an entry that is not of the form.
    """
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise LockError("there is no lock yet", path=path.name, fix=_SYNC) from error
    except OSError as error:
        raise LockError(
            f"cannot be read: {error.strerror}", path=path.name, fix="check that the file is readable"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        line = getattr(error, "lineno", None)
        raise LockError(
            f"is not valid JSON: {error}",
            path=path.name,
            line=line,
            fix=f"restore the file from version control, or {_SYNC}",
        ) from error
    if not isinstance(data, dict) or data.get("version") != LOCK_VERSION:
        found = data.get("version") if isinstance(data, dict) else type(data).__name__
        raise LockError(
            f"has format {found!r}, this porter ({__version__}) reads {LOCK_VERSION}", path=path.name, fix=_SYNC
        )
    try:
        return _lock_from(data)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise LockError(
            f"holds an entry that is not of the form: {error}",
            path=path.name,
            fix=f"restore the file from version control, or {_SYNC}",
        ) from error


def _lock_from(data: Mapping[str, Any]) -> Lock:
    return Lock(
        tool=data["porter"],
        black=data["black"],
        sources=from_json([{"name": name, **row} for name, row in data["sources"].items()], tuple[LockedSource, ...]),
        engine_names=tuple(data["engine_names"]),
        declarations=from_json(data.get("declarations", {}), dict[str, str]),
        surfaces=tuple(_surface_from(name, row) for name, row in data["surfaces"].items()),
    )


def _surface_from(source: str, row: Mapping[str, Any]) -> Surface:
    return Surface(
        source=source,
        modules=from_json([{"name": name, **module} for name, module in row["modules"].items()], tuple[Module, ...]),
        symbols=from_json(
            [{"id": identity, "source": source, **symbol} for identity, symbol in row["symbols"].items()],
            tuple[Symbol, ...],
        ),
        call_sites=from_json(row["call_sites"], tuple[CallSite, ...]),
        opaque=tuple(row["opaque"]),
    )
