"""Upstream's text behind each override, kept in the user's cache: what a stale override is compared with.

`porter sync` keeps the text under the digests that a pin records, so that after the next release `porter check` can show
what changed without the upstream. Nothing of it enters the project.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from porter.config import Config
from porter.drift import extract, interface_digest
from porter.errors import SourceError, UsageError
from porter.findings import Finding
from porter.lock import Lock, read_lock
from porter.overrides import PINS_NAME, Overrides, Pin, read_pins
from porter.pins import source_name
from porter.sources.cache import default_cache
from porter.surface.model import Symbol
from porter.tree import write_atomic

STALE = "PT021"
# Lines of a difference that a finding shows; `porter ack SYMBOL --show` prints all of it.
_SHOWN = 60


def remember(
    symbols: Iterable[Symbol], roots: Mapping[str, Path], *, declarations: Path, cache: Path | None = None
) -> None:
    """Keep the text of every symbol that is not kept yet.

    Parameters:
        roots: source name to its unpacked folder.
        declarations: folder of ``.pyi`` declarations.
    """
    from porter.surface.read import read_excerpts

    missing: dict[str, list[Symbol]] = {}
    for symbol in symbols:
        if source_name(symbol) in roots and not _path(symbol.body, interface_digest(symbol), cache).exists():
            missing.setdefault(source_name(symbol), []).append(symbol)
    for source, wanted in missing.items():
        texts = read_excerpts(source, roots[source], wanted, declarations=declarations)
        for symbol in wanted:
            data = _head(symbol) + texts.get(symbol.id, "")
            try:
                write_atomic(_path(symbol.body, interface_digest(symbol), cache), data.encode("utf-8", "replace"))
            except OSError:
                # A cache that cannot be written only costs the difference.
                return


def difference(pin: Pin, symbol: Symbol, *, cache: Path | None = None) -> str | None:
    """Unified diff of the upstream text that a pin was given for and that of today; None when one of them is not kept."""
    try:
        then, now = (
            _path(body, interface, cache).read_text(encoding="utf-8").splitlines(keepends=True)
            for body, interface in ((pin.body, pin.interface), (symbol.body, interface_digest(symbol)))
        )
    except OSError:
        return None
    return "".join(difflib.unified_diff(then, now, f"{pin.symbol} ({pin.source})", f"{pin.symbol} (now)"))


def explain(
    findings: Iterable[Finding], config: Config, *, lock: Lock | None = None, cache: Path | None = None
) -> tuple[Finding, ...]:
    """Findings with the upstream difference in those about stale overrides."""
    rows = tuple(findings)
    if not any(row.code == STALE for row in rows):
        return rows
    lock = lock or read_lock(config.lock_path)
    pins = read_pins((config.overrides_path / PINS_NAME).read_bytes(), f"{config.overrides}/{PINS_NAME}")

    def detail(row: Finding) -> str:
        if row.code != STALE or row.symbol not in pins or row.symbol not in lock.symbols:
            return row.detail
        text = difference(pins[row.symbol], lock.symbols[row.symbol], cache=cache)
        if text is None:
            return f"the text of {pins[row.symbol].source} is not in this machine's cache: `porter ack {row.symbol} --show` fetches it"
        lines = text.splitlines()
        more = [f"... {len(lines) - _SHOWN} more lines: porter ack {row.symbol} --show"] if len(lines) > _SHOWN else []
        return "\n".join([*lines[:_SHOWN], *more])

    return tuple(dataclasses.replace(row, detail=detail(row)) for row in rows)


def show(
    identity: str, config: Config, lock: Lock, overrides: Overrides, *, offline: bool = False, cache: Path | None = None
) -> str:
    """The whole difference of a pinned symbol, its texts fetched where they are not kept; "" when nothing changed.

    Raises:
        UsageError: the symbol is not pinned. SourceError: a text cannot be had.
    """
    from porter.upstream import Request, resolve_sources

    pin, symbol = overrides.pins.get(identity), lock.symbols[identity]
    if pin is None:
        raise UsageError(f"{identity} is not pinned", fix=f'porter ack {identity} --reason "..."')
    text = difference(pin, symbol, cache=cache)
    if text is None:
        name = source_name(symbol)
        sources = resolve_sources(config, Request(offline=offline, only=(name,)), lock, cache=cache)
        remember([symbol], {name: sources[name].root}, declarations=config.declarations_path, cache=cache)
        text = difference(pin, symbol, cache=cache)
    if text is None:
        fetch(pin, symbol, config, offline=offline, cache=cache)
        text = difference(pin, symbol, cache=cache)
    return text or ""


def fetch(pin: Pin, symbol: Symbol, config: Config, *, offline: bool = False, cache: Path | None = None) -> None:
    """Read the release that a pin was given for, and keep the symbol's text of then.

    Raises:
        SourceError: the release cannot be had, or no longer gives the pinned text (the pin was given for a folder).
    """
    from porter.sources.progress import QuietProgress
    from porter.sources.resolve import resolve
    from porter.sources.spec import parse_source
    from porter.surface.read import read_surfaces

    name = source_name(symbol)
    if "==" not in pin.source:
        raise SourceError(
            f"{pin.symbol} was pinned to {pin.source}, whose text is not kept here",
            fix="compare with your own history of that folder",
        )
    spec = parse_source(
        name, pin.source, base=config.root, package_dirs=(name,), where=f"{config.overrides}/{PINS_NAME}"
    )
    found = resolve(spec, lock_record=None, offline=offline, cache=cache)
    surfaces, _ = read_surfaces(name, found.root, progress=QuietProgress(), declarations=config.declarations_path)
    then = next((one for surface in surfaces for one in surface.symbols if one.id == symbol.id), None)
    if then is None or then.body != pin.body:
        raise SourceError(
            f"{pin.source} does not hold the body that {pin.symbol} is pinned to",
            fix=f"correct [{pin.symbol!r}] in {config.overrides}/{PINS_NAME}",
        )
    remember([then], {name: found.root}, declarations=config.declarations_path, cache=cache)


def _head(symbol: Symbol) -> str:
    told = extract(symbol)
    contract = json.dumps(json.loads(told.contract), indent=1) if told.contract else ""
    return f"# signature\n{told.signature}\n" + (f"# contract\n{contract}\n" if contract else "")


def _path(body: str, interface: str, cache: Path | None) -> Path:
    key = hashlib.sha256(f"{body} {interface}".encode()).hexdigest()[:32]
    return (cache or default_cache()) / "excerpts" / key[:2] / f"{key}.txt"
