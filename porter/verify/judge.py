"""From what a case did to a verdict. Pure: the plugin acts on it, the report counts it.

A missing kernel is never green. Upstream turns it into a skip; here it is a failure, or, when the backend leaves the
factory out on purpose, a case left out. A skip is a failure unless a known skip names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from porter.verify.catalogue import Catalogue


class Verdict(StrEnum):
    """What a case counts as. ``over``: upstream's own size does not fit the caps (listed, not failed)."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"
    OVER = "over cap"


@dataclass(frozen=True)
class Outcome:
    """What pytest and the recorder saw. ``status``: ``passed``, ``failed`` or ``skipped``; ``message``: why not passed.

    ``capped``: the cap that was hit, "" for none. ``missing``: factories asked for and not there.
    """

    status: str
    message: str = ""
    missing: Sequence[str] = ()
    violations: Sequence[tuple[str, str]] = ()
    capped: str = ""
    called: Sequence[str] = ()


@dataclass(frozen=True)
class Judgement:
    """A verdict, the finding code behind it ("" when there is none) and a text."""

    verdict: Verdict
    code: str = ""
    reason: str = ""


def left_out_reason(factory: str, excluded: Mapping[str, str]) -> str:
    """Text shown for a case that needs a factory left out on purpose."""
    return f"left out: {factory} ({excluded[factory]})"


def judge(
    outcome: Outcome, flavour: str, test: str, case: str, catalogue: Catalogue, excluded: Mapping[str, str], full: bool
) -> Judgement:
    """The verdict on one case that ran.

    Args:
        test: ``<file stem>::<function>``; ``case``: its parameter id, "" when it has none.
        excluded: factory to the reason why the backend leaves it out.
        full: upstream's own sizes are run, and a cap is listed.
    """
    if outcome.violations:
        factory, text = outcome.violations[0]
        return Judgement(Verdict.FAILED, "PV003", f"{factory}: {text}")
    absent = [factory for factory in outcome.missing if factory not in excluded]
    if absent:
        return Judgement(Verdict.FAILED, "PV002", f"the backend has no kernel {', '.join(absent)}")
    if outcome.missing:
        return Judgement(Verdict.LEFT_OUT, "", left_out_reason(outcome.missing[0], excluded))
    if outcome.capped:
        return (
            Judgement(Verdict.OVER, "", outcome.capped) if full else Judgement(Verdict.FAILED, "PV006", outcome.capped)
        )
    if outcome.status == "skipped":
        known = catalogue.skip_for(flavour, test, case)
        if known is None:
            return Judgement(Verdict.FAILED, "PV004", f"skipped, and no known skip names it: {outcome.message}")
        return Judgement(Verdict.SKIPPED, "", known.reason)
    if outcome.status == "failed":
        return Judgement(Verdict.FAILED, "PV001", outcome.message)
    entry = catalogue.tests.get(test)
    if entry is None:
        return Judgement(Verdict.FAILED, "PV010", f"the catalogue does not know {test}")
    stray = [factory for factory in outcome.called if factory not in entry.all_factories]
    if stray:
        return Judgement(Verdict.FAILED, "PV010", f"{test} calls {', '.join(stray)}, which the catalogue does not say")
    return Judgement(Verdict.PASSED)
