"""Docstrings reduced to facts about parameters: names, bracketed shapes, dtypes and a few words. No sentence is kept."""

from __future__ import annotations

import re

from porter.surface.model import DocFact

# `x: [n, D] contiguous`, `- x (Tensor): ...`, `x, y: int32 [n]`
_ENTRY = re.compile(
    r"^\s*[-*]?\s*(?P<names>[A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*(?:\((?P<type>[^)]*)\))?\s*:\s*(?P<text>\S.*)$"
)
_SHAPE = re.compile(r"[\[(](?P<inner>[\w\s.+*/%-]+(?:,[\w\s.+*/%-]*)*)[\])]")
_AXIS = re.compile(r"^[\w.]+(?:\s*(?://|[+*/%-])\s*[\w.]+)*$")
_DTYPES = re.compile(
    r"\b(?:torch\.)?(bfloat16|float16|float32|float64|float8_e4m3fn|float4_e2m1fn|bf16|fp16|fp32|fp64|fp8|fp4|e4m3|e2m1|ue8m0"
    r"|u?int(?:8|16|32|64)|bool)\b",
    re.IGNORECASE,
)
_FLAGS = (
    ("contiguous", re.compile(r"(?<!non-)(?<!not )\bcontiguous\b", re.IGNORECASE)),
    ("in-place", re.compile(r"\bin[- ]?place\b", re.IGNORECASE)),
    ("optional", re.compile(r"\boptional\b", re.IGNORECASE)),
    ("output", re.compile(r"\boutputs?\b|\bwritten\b", re.IGNORECASE)),
    ("strided", re.compile(r"\bstrided\b|\bnon-contiguous\b", re.IGNORECASE)),
)
# Words that head a section or a remark, not a parameter.
_HEADINGS = frozenset(
    {
        "args",
        "arguments",
        "parameters",
        "returns",
        "return",
        "raises",
        "note",
        "notes",
        "example",
        "examples",
        "kernel",
        "todo",
        "warning",
    }
)


def doc_facts(docstring: str) -> tuple[DocFact, ...]:
    """Facts of every entry ``name: ...`` of a docstring that states a shape, a dtype or a known word, in order.

    Of several entries with one name the first counts.
    """
    found: dict[str, DocFact] = {}
    for line in docstring.splitlines():
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        text = f"{entry['type'] or ''} {entry['text']}"
        shape, dtype = _shape(entry["text"]), _DTYPES.search(text)
        flags = tuple(name for name, pattern in _FLAGS if pattern.search(text))
        for name in re.split(r"\s*,\s*", entry["names"]):
            if name.lower() not in _HEADINGS and (shape or dtype or flags):
                found.setdefault(name, DocFact(name, shape, dtype[1].lower() if dtype else None, flags))
    return tuple(found.values())


def _shape(text: str) -> str | None:
    for match in _SHAPE.finditer(text):
        axes = [axis.strip() for axis in match["inner"].split(",")]
        stated = [axis for axis in axes if axis]
        if stated and all(_AXIS.match(axis) for axis in stated) and (match[0][0] == "[" or len(axes) > 1):
            return f"[{', '.join(stated)}]"
    return None
