"""Where in the user's code an operator was called: the frame that is not torch's, Python's or the simulation's.

A line may carry a ``# NEURON: host sync`` or ``# NEURON: 64-bit`` comment, on itself or in the comment lines right above
its statement; the finding there is allowed, and counted as such.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

HOST_SYNC, WIDE = "host sync", "64-bit"
_MARK = re.compile(r"#\s*NEURON:\s*(host sync|64-bit)\b")
_TRACE = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TORCH = str(Path(torch.__file__).parent) + "/"
_HERE = str(Path(__file__).parent) + "/"
_LIBRARY = sysconfig.get_paths()["stdlib"] + "/"
_PACKAGES = tuple(sysconfig.get_paths()[name] + "/" for name in ("purelib", "platlib"))
_DEPTH = 200
_inside = threading.local()


@dataclass(frozen=True)
class Place:
    """A line of the user's code. ``marks``: the NEURON comments that hold there or at a caller of it."""

    path: str = ""
    line: int = 0
    function: str = ""
    marks: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.path else "(no line of Python)"


@cache
def _foreign(path: str) -> bool:
    if path.startswith(("<frozen", "<__array", "<string", _TORCH, _HERE)):
        return True
    return path.startswith(_LIBRARY) and not path.startswith(_PACKAGES)


def _header(node: ast.stmt) -> range:
    body: list[ast.stmt] = getattr(node, "body", None) or []
    if body and isinstance(body[0], ast.stmt):
        return range(node.lineno, max(node.lineno, body[0].lineno - 1) + 1)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@cache
def _marked(path: str) -> dict[int, frozenset[str]]:
    """Marks by line of a file."""
    lines = linecache.getlines(path)
    comments = {number: match[1] for number, text in enumerate(lines, 1) if (match := _MARK.search(text))}
    if not comments:
        return {}
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return {number: frozenset((mark,)) for number, mark in comments.items()}
    found: dict[int, frozenset[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        span = _header(node)
        marks = {comments[number] for number in span if number in comments}
        above = node.lineno - 1
        while above > 0 and lines[above - 1].lstrip().startswith("#"):
            if above in comments:
                marks.add(comments[above])
            above -= 1
        for number in span if marks else ():
            found[number] = found.get(number, frozenset()) | marks
    return found


def marks_at(path: str, line: int) -> frozenset[str]:
    """The NEURON comments that hold at a line."""
    return _marked(path).get(line, frozenset())


def _frames(start: FrameType | None) -> Iterator[tuple[str, int, str]]:
    for _ in range(_DEPTH):
        if start is None:
            return
        yield start.f_code.co_filename, start.f_lineno, start.f_code.co_name
        start = start.f_back


def _choose(frames: Iterator[tuple[str, int, str]], roots: Sequence[str]) -> Place | None:
    place: tuple[str, int, str] | None = None
    marks: frozenset[str] = frozenset()
    for path, line, function in frames:
        if _foreign(path) or (roots and not path.startswith(tuple(roots))):
            continue
        if place is None:
            place = (path, line, function)
        marks |= marks_at(path, line)
    return None if place is None else Place(*place, marks)


def find(roots: Sequence[str] = ()) -> Place | None:
    """The innermost line of the user's code, under ``roots`` when they are given; None when there is none."""
    trace: str | None = getattr(_inside, "trace", None)
    if trace is not None:
        frames = [(match["path"], int(match["line"]), match["function"]) for match in _TRACE.finditer(trace)]
        place = _choose(iter(reversed(frames)), roots)
        if place is not None:
            return place
    return _choose(_frames(sys._getframe(1)), roots)


@contextmanager
def inside(trace: str | None) -> Iterator[None]:
    """Operators in the block belong to a compiled graph, and stem from the line that ``trace`` ends in."""
    previous = getattr(_inside, "trace", None)
    _inside.trace = trace or ""
    try:
        yield
    finally:
        _inside.trace = previous


def in_graph() -> bool:
    """Does a compiled graph run?"""
    return getattr(_inside, "trace", None) is not None
