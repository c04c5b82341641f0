"""PT100: an override can be parsed.

What cannot be parsed cannot be checked, nor copied into the emitted tree. The finding names the line.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Nothing on its own: a file that gets here was parsed."""
    return iter(())


RULE = Rule(
    code="PT100",
    name="unreadable",
    title="An override cannot be parsed.",
    doc=__doc__,
    check=check,
    valid=examples("y = 1\n"),
    invalid=examples("y = (\n", "def f(:\n    pass\n"),
)
