"""Data of the seams: where upstream is edited, what was found there, and what a plan would write."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace ``removed`` by ``added`` at byte ``offset`` of the original file."""

    offset: int
    removed: bytes
    added: bytes


class AnchorError(Exception):
    """Raised by a seam while it looks for its anchor; turned into a finding.

    Parameters:
        line: 1-based line where the anchor should be, or where the search ended.
        expected: the structure expected, by names.
        found: what stands there instead.
    """

    def __init__(self, line: int, expected: str, found: str) -> None:
        self.line = line
        self.expected = expected
        self.found = found
        super().__init__(f"line {line}: expected {expected}; found {found}")


@dataclass(frozen=True)
class Seam:
    """One small edit of one upstream file.

    ``edits`` looks for the anchor in the file's bytes and returns the edits, or raises AnchorError; it never writes.
    """

    name: str
    path: str
    purpose: str
    edits: Callable[[bytes], tuple[Edit, ...]]


@dataclass(frozen=True)
class FileChange:
    """One file as it is (``before``, None: absent) and as it will be (``after``, None: removed)."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    seams: tuple[str, ...] = ()

    def diff(self) -> str:
        """Unified diff; "" where nothing changes."""
        if self.before == self.after:
            return ""
        old, new = (
            [] if side is None else side.decode("utf-8", "replace").splitlines(keepends=True)
            for side in (self.before, self.after)
        )
        lines = difflib.unified_diff(
            old,
            new,
            "/dev/null" if self.before is None else f"a/{self.path}",
            "/dev/null" if self.after is None else f"b/{self.path}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True)
class ApplyPlan:
    """What ``apply`` would do to a checkout, and the record that lets ``revert`` undo it.

    ``changes`` are relative to the checkout as it is now and hold only files that differ; empty means that the
    checkout already has everything.
    """

    checkout: Path
    changes: tuple[FileChange, ...]
    manifest: bytes

    @property
    def up_to_date(self) -> bool:
        """Whether nothing is left to write."""
        return not self.changes

    def diff(self) -> str:
        """All diffs, edited upstream files first, each group by path."""
        ordered = sorted(self.changes, key=lambda change: (not change.seams, change.path))
        return "".join(change.diff() for change in ordered)
