"""MANIFEST.in: the new build files belong into a source archive."""

from __future__ import annotations

from porter.seams.model import AnchorError, Edit, Seam

_LINE = b"include setup_neuron.py csrc/neuron/compat/format"


def _edits(data: bytes) -> tuple[Edit, ...]:
    lines = data.splitlines(keepends=True)
    if not any(line.split()[:2] == [b"recursive-include", b"csrc"] for line in lines):
        raise AnchorError(max(len(lines), 1), "recursive-include csrc ...", "no such line")
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    lead = b"" if data.endswith(b"\n") else newline
    return (Edit(len(data), b"", lead + _LINE + newline),)


SEAM = Seam("source-archive", "MANIFEST.in", "setup_neuron.py and the compat header in source archives", _edits)
