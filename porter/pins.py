"""`porter ack`: saying that an override was read against upstream's body of today."""

from __future__ import annotations

from collections.abc import Iterable

from porter.config import ENGINE, SOURCE_NAMES, Config
from porter.drift import interface_digest
from porter.errors import UsageError
from porter.lock import Lock
from porter.overrides import PINS_NAME, Overrides, Pin, write_pins
from porter.plan import Freshness, Plan
from porter.surface.model import Symbol
from porter.tree import write_atomic


def find_symbol(lock: Lock, name: str) -> str:
    """The symbol id behind a name as a person writes it: an id, a public alias, or a unique last part (``norm_tl``).

    Raises:
        UsageError: no such name, or several.
    """
    exact = lock.paths.get(name)
    if exact is not None:
        return exact
    emitted = [identity for identity in lock.symbols if not identity.startswith("tilelang_ops.cuda.")]
    matches = sorted({identity for identity in emitted if identity.endswith("." + name)})
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(matches[:5]) + (", ..." if len(matches) > 5 else "")
        raise UsageError(f"{name!r} names {len(matches)} upstream symbols: {shown}", fix="write the whole id")
    from difflib import get_close_matches

    close = get_close_matches(name, [identity.rpartition(".")[2] for identity in emitted], 3)
    hint = f"; close names: {', '.join(dict.fromkeys(close))}" if close else ""
    raise UsageError(f"upstream has no {name!r}{hint}", fix="`porter status --names` lists the names")


def source_name(symbol: Symbol) -> str:
    """The source that a symbol was read from, as porter.toml names it."""
    return symbol.source if symbol.source in SOURCE_NAMES else ENGINE


def source_of(lock: Lock, symbol: str) -> str:
    """The upstream release that a symbol was read from, ``deepinfer==0.1.0``."""
    name = source_name(lock.symbols[symbol])
    source = lock.source(name)
    return source.requirement if source else name


def acknowledge(
    config: Config, lock: Lock, plan: Plan, overrides: Overrides, symbols: Iterable[str], reason: str
) -> tuple[str, ...]:
    """Pin the given symbols' overrides to upstream's body of today and write pins.toml. Returns the ids pinned.

    Raises:
        UsageError: no reason, a symbol without an override, or one whose signature does not fit: that is not for a waiver.
    """
    if not reason.strip():
        raise UsageError("a reason is needed", fix='add --reason "what was checked"')
    pins = dict(overrides.pins)
    done = []
    for symbol in symbols:
        entry = plan.by_id.get(symbol)
        if entry is None or not entry.override or entry.is_member:
            raise UsageError(f"{symbol} has no override", fix=f"porter new {symbol}")
        if entry.freshness is Freshness.MISMATCHED:
            raise UsageError(
                f"{symbol} does not fit upstream: {entry.differences[0]}",
                fix=f"edit {overrides.folder}/{entry.override} first",
            )
        pins[symbol] = Pin(
            symbol, entry.symbol.body, interface_digest(entry.symbol), source_of(lock, symbol), reason.strip()
        )
        done.append(symbol)
    write_atomic(config.overrides_path / PINS_NAME, write_pins(pins).encode())
    return tuple(done)


def drop(config: Config, overrides: Overrides, symbols: Iterable[str]) -> tuple[str, ...]:
    """Remove pins of names that upstream dropped.

    Raises:
        UsageError: a symbol is not pinned.
    """
    pins = dict(overrides.pins)
    done = []
    for symbol in symbols:
        if symbol not in pins:
            raise UsageError(f"{symbol} is not pinned", fix=f"see {overrides.folder}/{PINS_NAME}")
        del pins[symbol]
        done.append(symbol)
    write_atomic(config.overrides_path / PINS_NAME, write_pins(pins).encode())
    return tuple(done)


def unpinned(plan: Plan) -> tuple[str, ...]:
    """Ids of overrides that have no pin yet."""
    return tuple(
        entry.symbol.id
        for entry in plan.entries
        if entry.override and not entry.is_member and entry.freshness is Freshness.UNPINNED
    )


def stale(plan: Plan) -> tuple[str, ...]:
    """Ids of overrides whose upstream body moved."""
    return tuple(
        entry.symbol.id
        for entry in plan.entries
        if entry.override and not entry.is_member and entry.freshness is Freshness.STALE
    )
