"""Frozen dataclasses to JSON text and back, the same bytes everywhere.

Fields that hold their default are left out. A list or object whose members are all scalars stands on one line, so that
one parameter or one kernel argument is one line of a diff.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import msgspec

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (f.name, f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default)
        for f in dataclasses.fields(kind)
    )


def to_json(value: object) -> Json:
    """Plain JSON data of a dataclass, fields equal to their default left out."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: to_json(item)
            for name, default in _fields(type(value))
            if (item := getattr(value, name)) is not default and item != default
        }
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")


def from_json[T](data: object, kind: type[T]) -> T:
    """The dataclass that ``to_json`` wrote.

    Raises:
        msgspec.ValidationError: the data does not have the fields or types of ``kind``.
    """
    return msgspec.convert(data, type=kind, strict=True)


def dumps(data: Json) -> str:
    """Diffable text: one-space indentation, innermost containers on one line, newline at the end."""
    out: list[str] = []
    _write(data, 0, out)
    out.append("\n")
    return "".join(out)


def _write(data: Json, depth: int, out: list[str]) -> None:
    if isinstance(data, dict):
        items = [(f"{json.dumps(key, ensure_ascii=False)}: ", value) for key, value in data.items()]
        opening, closing = "{", "}"
    elif isinstance(data, list):
        items = [("", value) for value in data]
        opening, closing = "[", "]"
    else:
        out.append(json.dumps(data, ensure_ascii=False))
        return
    flat = all(not isinstance(value, (dict, list)) or not value for _, value in items)
    if flat and (depth > 1 or not items):
        out.append(opening + ", ".join(key + json.dumps(value, ensure_ascii=False) for key, value in items) + closing)
        return
    pad = " " * (depth + 1)
    out.append(opening + "\n")
    for index, (key, value) in enumerate(items):
        out.append(pad + key)
        _write(value, depth + 1, out)
        out.append(",\n" if index + 1 < len(items) else "\n")
    out.append(" " * depth + closing)
