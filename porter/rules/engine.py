"""Runs every kernel rule over one override file."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from porter.errors import UnreadableFileError
from porter.rules import RULES, suppression, unreadable
from porter.rules.base import Problem, Rule, RuleContext, RuleFinding
from porter.rules.source import SourceFile
from porter.surface.nesting import check_nesting

__all__ = ["RuleContext", "RuleFinding", "check_file"]


def check_file(
    path: str, data: bytes, context: RuleContext | None = None, *, rules: Sequence[Rule] | None = None
) -> list[RuleFinding]:
    """Findings of the rules (all of them, or ``rules``) in one file, by line and code.

    ``path`` is the file as the reader knows it; some rules look at where it stands. A file that cannot be parsed is one
    finding, not an error.
    """
    context = context or RuleContext()
    chosen = tuple(RULES.values()) if rules is None else tuple(rules)
    try:
        check_nesting(path, data)
        file = SourceFile(path, data)
        found = [(rule, problem) for rule in chosen for problem in rule.check(file, context)]
    except (UnreadableFileError, cst.ParserSyntaxError, SyntaxError, UnicodeError, RecursionError, TypeError) as error:
        return [_unreadable(path, error)]
    findings, used = _suppressed(file, found)
    if rules is None or suppression.RULE in chosen:
        for problem in suppression.problems(file, used, RULES):
            findings.append(_finding(suppression.RULE, problem, file))
    return sorted(set(findings), key=lambda one: (one.line, one.code, one.message, one.found))


def _suppressed(file: SourceFile, found: list[tuple[Rule, Problem]]) -> tuple[list[RuleFinding], set[tuple[int, str]]]:
    """Findings that no comment accepts, and (line, code) of the comments that accepted one."""
    by_line = {one.line: one for one in suppression.suppressions(file) if one.holds}
    findings: list[RuleFinding] = []
    used: set[tuple[int, str]] = set()
    for rule, problem in found:
        lines = file.comment_lines(problem.node) if problem.node is not None else _around(problem.line or 1, file)
        accepted = [line for line in lines if line in by_line and rule.code in by_line[line].codes]
        used.update((line, rule.code) for line in accepted)
        if not accepted:
            findings.append(_finding(rule, problem, file))
    return findings, used


def _around(line: int, file: SourceFile) -> list[int]:
    lines = [line]
    while line - 1 in file.comments and file.comments[line - 1].alone:
        line -= 1
        lines.append(line)
    return lines


def _finding(rule: Rule, problem: Problem, file: SourceFile) -> RuleFinding:
    line = problem.line if problem.line is not None else file.line(problem.node) if problem.node is not None else 1
    return RuleFinding(
        rule.code, rule.name, file.path, line, problem.message, problem.expected, problem.found, problem.fix
    )


def _unreadable(path: str, error: Exception) -> RuleFinding:
    line = next((found for name in ("raw_line", "lineno", "line") if (found := getattr(error, name, None))), 1)
    message = (
        "is nested too deeply to be read"
        if isinstance(error, (RecursionError, UnreadableFileError))
        else "cannot be parsed"
    )
    rule = unreadable.RULE
    return RuleFinding(
        rule.code,
        rule.name,
        path,
        int(line),
        f"the file {message}",
        "a Python file",
        type(error).__name__,
        "mend the line named",
    )
