"""PT190: a suppression says why, and suppresses something.

``# porter: ignore[PT105] reason`` on a line, or on a line of its own above it, accepts that line against the rules named.
It needs a reason, and a suppression that accepts nothing is itself a finding, so that none is left behind. Nothing
suppresses this rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile

_FORM = re.compile(r"#\s*porter:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?[\s:,-]*(?P<reason>.*)")


@dataclass(frozen=True)
class Suppression:
    """A suppressing comment: its line, the codes it names, and the reason it gives."""

    line: int
    codes: tuple[str, ...]
    reason: str
    text: str

    @property
    def holds(self) -> bool:
        """Does it suppress: does it name codes and give a reason?"""
        return bool(self.codes and self.reason)


def suppressions(file: SourceFile) -> tuple[Suppression, ...]:
    """Every suppressing comment of a file, by line."""
    found: list[Suppression] = []
    for line, comment in sorted(file.comments.items()):
        match = _FORM.search(comment.text)
        if match is not None:
            codes = tuple(code.strip() for code in (match.group("codes") or "").split(",") if code.strip())
            found.append(Suppression(line, codes, match.group("reason").strip(), comment.text))
    return tuple(found)


def problems(file: SourceFile, used: Collection[tuple[int, str]], known: Collection[str]) -> Iterator[Problem]:
    """What is wrong with a file's suppressions; ``used`` holds (line, code) of those that accepted a finding."""
    for one in suppressions(file):
        if not one.codes:
            yield _problem(
                one, "the suppression names no rule", "# porter: ignore[PT105] <reason>", "name the rule in brackets"
            )
        elif not one.reason:
            yield _problem(
                one, "the suppression gives no reason", "# porter: ignore[PT105] <reason>", "say why the line is right"
            )
        else:
            for code in one.codes:
                if code not in known:
                    yield _problem(
                        one, f"the suppression names {code}, which is no rule", "a rule's code", "correct the code"
                    )
                elif (one.line, code) not in used:
                    yield _problem(
                        one,
                        f"the suppression of {code} accepts nothing",
                        f"a finding of {code} on this line",
                        "remove the suppression",
                    )


def _problem(one: Suppression, message: str, expected: str, fix: str) -> Problem:
    return Problem(message, line=one.line, expected=expected, found=one.text, fix=fix)


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Nothing on its own: the engine asks ``problems`` once it knows what was suppressed."""
    return iter(())


RULE = Rule(
    code="PT190",
    name="suppression",
    title="A suppression gives no reason or accepts nothing.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = x.to(torch.int64)  # porter: ignore[PT105] the caller's index is 64 bits wide\n",
        "import torch\n# porter: ignore[PT105] the caller's index is 64 bits wide\ny = x.to(torch.int64)\n",
        "import torch\ny = x.double().long()  # porter: ignore[PT105, PT110]: bit-exact by contract\n",
        "y = x + 1  # porter is ignored here\n",
    ),
    invalid=examples(
        "import torch\ny = x.to(torch.int64)  # porter: ignore[PT105]\n",
        "import torch\ny = x.to(torch.int64)  # porter: ignore the caller wants it\n",
        "y = x + 1  # porter: ignore[PT105] once needed\n",
        "import torch\ny = x.to(torch.int64)  # porter: ignore[PT105, PT110] the caller wants it\n",
        "y = x + 1  # porter: ignore[PT999] no such rule\n",
    ),
)
