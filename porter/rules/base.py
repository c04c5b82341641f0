"""What a kernel rule is, and what it says.

A rule looks at one override file and yields problems. Each lives in a module of its own, whose docstring is its page of
documentation, with examples that it accepts and examples that it refuses; the tests run every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from porter.rules.source import SourceFile


@dataclass(frozen=True)
class RuleFinding:
    """One place where an override breaks a rule.

    ``code`` and ``name`` are the rule's. ``expected`` and ``found`` are short texts, ``fix`` the edit that mends it.
    """

    code: str
    name: str
    path: str
    line: int
    message: str
    expected: str = ""
    found: str = ""
    fix: str = ""


@dataclass(frozen=True)
class RuleContext:
    """What a rule is told beyond the file.

    ``written``: kernel arguments that upstream's contract lets the kernel write, by factory name.
    """

    written: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """A finding before its rule and file are filled in. ``node`` is where; without one the file as a whole is meant."""

    message: str
    node: cst.CSTNode | None = None
    expected: str = ""
    found: str = ""
    fix: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Example:
    """A file that a rule accepts or refuses: its source, where it stands, and what the rule is told."""

    source: str
    path: str = "overrides/tilelang_ops/example.py"
    context: RuleContext = field(default_factory=RuleContext)


def examples(*sources: str | Example) -> tuple[Example, ...]:
    """Examples from sources; a plain string is a file of kernels."""
    return tuple(one if isinstance(one, Example) else Example(one) for one in sources)


Check = Callable[["SourceFile", RuleContext], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """A numbered rule. ``title`` is one short sentence, ``doc`` its page of documentation."""

    code: str
    name: str
    title: str
    doc: str
    check: Check
    valid: Sequence[Example]
    invalid: Sequence[Example]
