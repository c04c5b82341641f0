"""Findings: what is wrong, as data. Every output format prints the same findings; the exit code comes from here alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding weighs: an ``error`` fails the check, a ``note`` informs."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True)
class FindingKind:
    """A numbered cause of findings. ``title`` is a short sentence for the rule listing of SARIF and the docs."""

    code: str
    name: str
    title: str


def _kinds(*rows: tuple[str, str, str]) -> dict[str, FindingKind]:
    return {code: FindingKind(code, name, title) for code, name, title in rows}


KINDS = _kinds(
    ("PT001", "interrupted-sync", "A sync was cut short; the emitted tree is between two states."),
    ("PT002", "output-missing", "A file that porter emitted is gone."),
    ("PT003", "output-edited", "A file that porter emitted was changed by hand."),
    ("PT004", "output-outdated", "An emitted file is not what lock, overrides, templates and configuration give now."),
    ("PT005", "output-stale", "A file that porter owns is no longer emitted."),
    ("PT010", "unclassified", "An upstream name is neither implemented, excluded nor listed as pending."),
    ("PT011", "pattern-unmatched", "A pattern in porter.toml matches no upstream name."),
    ("PT012", "pattern-shadowed", "A name listed as pending is implemented or excluded already."),
    ("PT013", "undeclared", "A name bound in compiled code has no source that tells its arguments."),
    ("PT020", "override-orphan", "An override's name does not exist upstream."),
    ("PT021", "override-stale", "Upstream's body or contract changed since the override was written."),
    ("PT022", "override-mismatched", "An override's signature or kernel arguments differ from upstream's."),
    ("PT023", "override-unpinned", "An override does not record which upstream body it was written against."),
    ("PT024", "pin-unmatched", "A pin names no override."),
    ("PT030", "lock-version", "porter.lock was written by another version of porter or black."),
    ("PT031", "lock-source", "porter.toml names another source version than porter.lock."),
    ("PT032", "lock-declaration", "A declaration in overrides/ is not the one that porter.lock was written with."),
    ("PT040", "drift", "The upstream named on the command line differs from porter.lock."),
    ("PT041", "seam-moved", "An upstream file does not hold what a seam expects to find."),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing to act on.

    ``code`` is a key of ``KINDS`` or a kernel rule's code. ``symbol`` is the upstream name concerned, "" when none.
    ``path``/``line`` is where to look. ``expected`` and ``found`` are short texts; ``fix`` is the one command or edit.
    ``detail`` is text of several lines that shows more: a difference.
    """

    code: str
    message: str
    symbol: str = ""
    path: str = ""
    line: int | None = None
    expected: str = ""
    found: str = ""
    fix: str = ""
    level: Level = Level.ERROR
    detail: str = ""

    @property
    def sort_key(self) -> tuple[str, str, int, str, str]:
        """Order in every report: by place, then cause."""
        return (self.code, self.path, self.line or 0, self.symbol, self.message)


@dataclass(frozen=True)
class Report:
    """All findings of one run."""

    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Report:
        """A report in canonical order, duplicates dropped."""
        return cls(tuple(sorted(set(findings), key=lambda f: f.sort_key)))

    @property
    def errors(self) -> int:
        """Number of findings that fail the check."""
        return sum(1 for finding in self.findings if finding.level is Level.ERROR)

    @property
    def exit_code(self) -> int:
        """0 when nothing fails, 1 otherwise. (2 and 3 belong to raised errors: the run could not tell.)"""
        return 1 if self.errors else 0
