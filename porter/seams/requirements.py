"""requirements-neuron.txt, made from the checkout's own requirements.txt."""

from __future__ import annotations

import re

SOURCE = "requirements.txt"
PATH = "requirements-neuron.txt"

LEFT_OUT = frozenset({"tilelang", "tile-kernels", "torch"})
"""Packages that Neuron does not take from there: two are drop-ins, torch comes with torch-neuronx."""

_NAME = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_HEADER = "# requirements.txt without {left_out}; written by `porter apply`\n"


def derive(text: str) -> str:
    """``text`` without the lines of LEFT_OUT, under a header."""
    kept = [line for line in text.splitlines() if _package(line) not in LEFT_OUT]
    return _HEADER.format(left_out=", ".join(sorted(LEFT_OUT))) + "".join(f"{line}\n" for line in kept)


def _package(line: str) -> str | None:
    match = _NAME.match(line)
    return None if match is None else re.sub(r"[-_.]+", "-", match.group(1)).lower()
