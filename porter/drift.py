"""What changed between two readings of the upstream: one row a symbol."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from porter.codec import Json, to_json
from porter.surface.digest import combine
from porter.surface.model import Signature, Surface, Symbol
from porter.surface.sketch import similarity

# Two bodies at least this similar, under names that exist on one side only, are proposed as a rename.
RENAME_SIMILARITY = 0.6


class ChangeKind(StrEnum):
    """The strongest thing that changed of a symbol, strongest first."""

    ADDED = "added"
    REMOVED = "removed"
    RENAMED = "renamed?"
    SIGNATURE = "signature"
    CONTRACT = "contract"
    BODY = "body"


@dataclass(frozen=True)
class Extract:
    """The three extracts of a symbol that are compared, as text or digest, and where it stands."""

    signature: str = ""
    contract: str = ""
    body: str = ""
    symbol: str = ""


@dataclass(frozen=True)
class Change:
    """One symbol that changed. ``old``/``new`` hold the extracts that differ (all of them when added or removed).

    For a proposed rename ``symbol`` is the old name and ``new.symbol`` the new one; ``similarity`` is that of the bodies.
    ``also`` lists the weaker kinds that changed too. ``file``/``line`` is in the new upstream, or in the old one for a removal.
    """

    symbol: str
    source: str
    kind: ChangeKind
    old: Extract | None
    new: Extract | None
    file: str
    line: int
    also: tuple[ChangeKind, ...] = ()
    similarity: float | None = None


def signature_text(signature: Signature | None) -> str:
    """A signature as Python writes it: ``(x: int, /, *, y=1) -> None``; ``(...)`` when unknown."""
    if signature is None:
        return "(...)"
    from porter.surface.model import ParameterKind as K

    parts: list[str] = []
    kinds = [parameter.kind for parameter in signature.parameters]
    for index, parameter in enumerate(signature.parameters):
        if parameter.kind is K.KEYWORD_ONLY and not any(k in (K.KEYWORD_ONLY, K.VAR_POSITIONAL) for k in kinds[:index]):
            parts.append("*")
        stars = {K.VAR_POSITIONAL: "*", K.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None:
            text += (" = " if parameter.annotation is not None else "=") + parameter.default
        parts.append(text)
        if parameter.kind is K.POSITIONAL_ONLY and (
            index + 1 == len(kinds) or kinds[index + 1] is not K.POSITIONAL_ONLY
        ):
            parts.append("/")
    returns = f" -> {signature.returns}" if signature.returns is not None else ""
    return f"({', '.join(parts)}){returns}"


def extract(symbol: Symbol) -> Extract:
    """The compared extracts of a symbol."""
    bases = ", ".join((f"{base.keyword}=" if base.keyword else "") + base.text for base in symbol.bases)
    head = f"{symbol.kind}" + (" async" if symbol.is_async else "")
    if symbol.kind.value == "class":
        signature = f"{head}({bases})"
    elif symbol.value is not None or symbol.kind.value in ("constant", "attribute"):
        annotation = f": {symbol.annotation}" if symbol.annotation else ""
        signature = f"{head}{annotation}"
    else:
        signature = head + signature_text(symbol.signature)
    contract = dataclasses.replace(symbol.contract, opaque=()) if symbol.contract is not None else None
    return Extract(signature, _contract_text(to_json(contract)) if contract else "", symbol.body, symbol.id)


def interface_digest(symbol: Symbol) -> str:
    """Digest of how a symbol is called: its signature and tensor contract."""
    told = extract(symbol)
    return combine([told.signature, told.contract])


def _contract_text(data: Json) -> str:
    import json

    return json.dumps(data, sort_keys=True)


def compare(old: Iterable[Surface], new: Iterable[Surface]) -> tuple[Change, ...]:
    """Every symbol that differs, sorted by source and symbol. A rename is proposed by body similarity, never assumed."""
    before = {symbol.id: symbol for surface in old for symbol in surface.symbols}
    after = {symbol.id: symbol for surface in new for symbol in surface.symbols}
    rows = [
        change for identity in before.keys() & after.keys() if (change := _changed(before[identity], after[identity]))
    ]
    removed = {identity: before[identity] for identity in before.keys() - after.keys()}
    added = {identity: after[identity] for identity in after.keys() - before.keys()}
    for old_id, new_id, score in _renames(removed, added):
        first, second = removed.pop(old_id), added.pop(new_id)
        rows.append(_row(ChangeKind.RENAMED, first, second, similarity=score))
    rows.extend(_row(ChangeKind.REMOVED, symbol, None) for symbol in removed.values())
    rows.extend(_row(ChangeKind.ADDED, None, symbol) for symbol in added.values())
    return tuple(sorted(rows, key=lambda row: (row.source, row.symbol)))


def _row(kind: ChangeKind, old: Symbol | None, new: Symbol | None, *, similarity: float | None = None) -> Change:
    shown = new or old
    named = old or new
    assert shown is not None and named is not None
    return Change(
        symbol=named.id,
        source=named.source,
        kind=kind,
        old=extract(old) if old else None,
        new=extract(new) if new else None,
        file=shown.path,
        line=shown.line,
        similarity=similarity,
    )


def _changed(old: Symbol, new: Symbol) -> Change | None:
    before, after = extract(old), extract(new)
    kinds = [
        kind
        for kind, moved in (
            (ChangeKind.SIGNATURE, before.signature != after.signature),
            (ChangeKind.CONTRACT, before.contract != after.contract),
            (ChangeKind.BODY, before.body != after.body),
        )
        if moved
    ]
    if not kinds:
        return None

    def only(extract: Extract) -> Extract:
        return Extract(
            extract.signature if ChangeKind.SIGNATURE in kinds else "",
            extract.contract if ChangeKind.CONTRACT in kinds else "",
            extract.body if ChangeKind.BODY in kinds else "",
            extract.symbol,
        )

    return Change(new.id, new.source, kinds[0], only(before), only(after), new.path, new.line, tuple(kinds[1:]))


def _renames(removed: Mapping[str, Symbol], added: Mapping[str, Symbol]) -> list[tuple[str, str, float]]:
    """Pairs (old, new, similarity), best first, each name used once; members of classes follow their class."""
    scored = []
    for old in removed.values():
        if "." in old.qualname or not old.own:
            continue
        for new in added.values():
            if "." in new.qualname or new.kind is not old.kind or new.source != old.source or not new.own:
                continue
            score = 1.0 if old.own == new.own and old.sketch else similarity(old.sketch, new.sketch)
            if score >= RENAME_SIMILARITY:
                scored.append((-score, old.qualname != new.qualname, old.id, new.id))
    pairs: list[tuple[str, str, float]] = []
    used: set[str] = set()
    for negative, _, old_id, new_id in sorted(scored):
        if old_id not in used and new_id not in used:
            used.update((old_id, new_id))
            pairs.append((old_id, new_id, -negative))
    return pairs
