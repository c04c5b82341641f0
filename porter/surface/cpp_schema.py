"""Operator schemas of ``TORCH_LIBRARY``, read from their text.

Mirrors the grammar of ``torch/csrc/jit/frontend/function_schema_parser.cpp``: arguments with types, defaults, the
keyword-only star and the alias marks ``(a!)`` that say which arguments are written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from porter.surface.cpp_types import split_arguments
from porter.surface.model import DocFact, Parameter, ParameterKind, Signature
from porter.surface.text import quoted

_TYPES = {
    "Tensor": "torch.Tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool", "str": "str",
    "ScalarType": "torch.dtype", "Device": "torch.device", "Generator": "torch.Generator", "Layout": "torch.layout",
    "MemoryFormat": "torch.memory_format", "Scalar": "int | float | bool", "Stream": "torch.Stream", "complex": "complex",
}  # fmt: skip
_ARGUMENT = re.compile(r"(?P<type>.+?)\s+(?P<name>\w+)\s*(?:=\s*(?P<default>.+))?", re.DOTALL)
_MARK = re.compile(r"\(\s*[\w|* >-]*?(?P<written>!)?\s*(?:->[^)]*)?\)")


@dataclass(frozen=True)
class Schema:
    """An operator's name (namespace and overload left out), arguments, and which of them it writes."""

    name: str
    overload: str
    signature: Signature
    docs: tuple[DocFact, ...]
    notes: tuple[str, ...] = ()


def read_schema(text: str) -> Schema | str:
    """Read ``name.overload(arguments) -> returns``; a string says why it cannot be read."""
    match = re.fullmatch(r"\s*(?:\w+::)?(?P<name>\w+)(?:\.(?P<overload>\w+))?\s*(?P<rest>\(.*)", text, re.DOTALL)
    if match is None:
        return "not a schema with arguments"
    rest = match.group("rest")
    close = _closing(rest)
    if close is None:
        return "unbalanced parentheses in the schema"
    parameters: list[Parameter] = []
    docs: list[DocFact] = []
    notes: list[str] = []
    kind = ParameterKind.POSITIONAL
    for part in split_arguments(rest[1:close]):
        if part == "*":
            kind = ParameterKind.KEYWORD_ONLY
            continue
        if part == "...":
            parameters.append(Parameter("args", ParameterKind.VAR_POSITIONAL))
            continue
        argument = _ARGUMENT.fullmatch(part)
        if argument is None:
            return f"schema argument `{part}` has no name"
        default = argument.group("default")
        written = None
        if default is not None:
            written = _default(default.strip())
            if written is None:
                written = "..."
                notes.append(f"default of {argument.group('name')}: {default.strip()}")
        if "!" in argument.group("type"):
            docs.append(DocFact(argument.group("name"), flags=("in-place",)))
        parameters.append(Parameter(argument.group("name"), kind, written, schema_type(argument.group("type"))))
    after = rest[close + 1 :].strip()
    returns = schema_type(after.removeprefix("->").strip()) if after.startswith("->") else None
    return Schema(
        match.group("name"),
        match.group("overload") or "",
        Signature(tuple(parameters), returns),
        tuple(docs),
        tuple(notes),
    )


def _closing(text: str) -> int | None:
    depth = 0
    for index, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return index
    return None


def schema_type(text: str) -> str | None:
    """Python annotation of a schema type, None where it is unknown."""
    bare = _MARK.sub("", text).strip() if not text.startswith("(") else text
    if bare.startswith("(") and bare.endswith(")"):
        parts = [
            schema_type(re.sub(r"\s+\w+$", "", part) if re.search(r"\s\w+$", part) else part)
            for part in split_arguments(bare[1:-1])
        ]
        if not parts:
            return "None"
        return f"tuple[{', '.join(part or 'object' for part in parts)}]" if all(parts) else None
    if bare.endswith("?"):
        inner = schema_type(bare[:-1])
        return f"{inner} | None" if inner is not None else None
    if (match := re.fullmatch(r"(.+)\[\d*\]", bare)) is not None:
        inner = schema_type(match.group(1))
        return f"list[{inner}]" if inner is not None else None
    return _TYPES.get(bare)


def _default(text: str) -> str | None:
    if text in ("None", "True", "False"):
        return text
    if re.fullmatch(r"-?\d+", text):
        return text
    if re.fullmatch(r"-?[\d.]+(?:[eE][+-]?\d+)?", text):
        return repr(float(text))
    if re.fullmatch(r'"[^"\\]*"', text) or re.fullmatch(r"'[^'\\]*'", text):
        return quoted(text[1:-1])
    if text.startswith("[") and text.endswith("]"):
        parts = [_default(part) for part in split_arguments(text[1:-1])]
        return (
            f"[{', '.join(part for part in parts if part is not None)}]"
            if all(part is not None for part in parts)
            else None
        )
    return {"inf": 'float("inf")', "-inf": 'float("-inf")', "nan": 'float("nan")'}.get(text)
