"""Drift as text, markdown and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from porter.codec import Json
from porter.drift import Change, Extract

FORMAT_VERSION = 1


def text(changes: Sequence[Change]) -> str:
    """One block a symbol."""
    if not changes:
        return "no change\n"
    lines: list[str] = []
    for change in changes:
        also = f" (also {', '.join(change.also)})" if change.also else ""
        lines.append(f"{change.kind:<10} {_title(change)}{also}  {change.file}:{change.line}")
        for field in ("signature", "contract", "body"):
            old, new = (getattr(side, field) if side else "" for side in (change.old, change.new))
            if change.old is not None and change.new is not None and old != new and field != "body":
                lines += [f"    - {old}", f"    + {new}"]
    lines.append(_summary(changes))
    return "\n".join(lines) + "\n"


def _title(change: Change) -> str:
    if change.similarity is not None and change.new is not None:
        return f"{change.symbol} -> {change.new.symbol} (bodies {change.similarity:.0%} alike)"
    return change.symbol


def _summary(changes: Sequence[Change]) -> str:
    kinds = Counter(str(change.kind) for change in changes)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(changes)} symbol{'s' if len(changes) != 1 else ''} changed: {listed}"


def markdown(changes: Sequence[Change]) -> str:
    """A table, one row a symbol, as a pull request shows it."""
    lines = ["| symbol | change | before | after | where |", "|---|---|---|---|---|"]
    for change in changes:
        kinds = ", ".join(str(kind) for kind in (change.kind, *change.also))
        lines.append(
            f"| `{change.symbol}` | {kinds} | {_cell(change.old)} | {_cell(change.new)} | {change.file}:{change.line} |"
        )
    return "\n".join([*lines, "", _summary(changes) if changes else "no change"]) + "\n"


def _cell(extract: Extract | None) -> str:
    if extract is None:
        return ""
    shown = extract.signature or extract.contract or (f"body {extract.body[:8]}" if extract.body else "")
    shown = shown if len(shown) < 200 else shown[:199] + "…"
    return f"`{shown.replace('|', chr(92) + '|').replace('`', '')}`" if shown else ""


def as_json(changes: Sequence[Change]) -> str:
    """``{"version": 1, "changes": [{"symbol", "source", "kind", "old", "new", "file", "line", ...}]}``."""
    rows: list[Json] = [
        {
            "symbol": change.symbol,
            "source": change.source,
            "kind": str(change.kind),
            "also": [str(kind) for kind in change.also],
            "old": _side(change.old),
            "new": _side(change.new),
            "file": change.file,
            "line": change.line,
            "similarity": None if change.similarity is None else round(change.similarity, 3),
        }
        for change in changes
    ]
    return json.dumps({"version": FORMAT_VERSION, "changes": rows}, indent=1, ensure_ascii=False) + "\n"


def _side(extract: Extract | None) -> Json:
    if extract is None:
        return None
    return {
        key: value
        for key, value in (
            ("symbol", extract.symbol),
            ("signature", extract.signature),
            ("contract", extract.contract),
            ("body", extract.body),
        )
        if value
    }


FORMATS: Mapping[str, Callable[[Sequence[Change]], str]] = {"text": text, "markdown": markdown, "json": as_json}
