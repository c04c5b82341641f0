"""Every rule's own examples, and what holds for all rules."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

import porter.rules
from porter.findings import KINDS
from porter.rules import RULES
from porter.rules.base import Example, Rule, RuleContext, RuleFinding
from porter.rules.engine import check_file

# Modules of the package that hold no rule.
_HELPERS = frozenset({"base", "engine", "infer", "operands", "source", "syncs"})


def run(rule: Rule, example: Example) -> list[RuleFinding]:
    """Findings of one rule in an example; a rule about other rules' comments needs them all to run."""
    found = check_file(example.path, example.source.encode(), example.context)
    return [one for one in found if one.code == rule.code]


def cases(kind: str) -> list[object]:
    return [
        pytest.param(rule, example, id=f"{rule.code}-{index}")
        for rule in RULES.values()
        for index, example in enumerate(getattr(rule, kind))
    ]


@pytest.mark.parametrize(("rule", "example"), cases("valid"))
def test_valid_example_is_accepted(rule: Rule, example: Example) -> None:
    assert run(rule, example) == []


@pytest.mark.parametrize(("rule", "example"), cases("invalid"))
def test_invalid_example_is_refused(rule: Rule, example: Example) -> None:
    found = run(rule, example)
    assert found
    for one in found:
        assert (one.code, one.name, one.path) == (rule.code, rule.name, example.path)
        assert 1 <= one.line <= example.source.count("\n") + 1
        assert one.message and one.expected and one.found and one.fix


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rule_is_documented(rule: Rule) -> None:
    assert re.fullmatch(r"PT1\d\d", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", rule.name)
    assert rule.title.endswith(".") and len(rule.title) <= 100
    first, _, rest = rule.doc.strip().partition("\n")
    assert first.startswith(f"{rule.code}: ")
    assert len(rest.split()) >= 15, "a page says more than its title"
    assert rule.valid and rule.invalid


def test_codes_and_names_are_unique() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert not RULES.keys() & KINDS.keys()
    assert not {rule.name for rule in RULES.values()} & {kind.name for kind in KINDS.values()}
    assert list(RULES) == sorted(RULES)


def test_every_rule_module_is_listed() -> None:
    modules = {one.name for one in pkgutil.iter_modules(porter.rules.__path__)} - _HELPERS
    assert len(modules) == len(RULES)
    listed = {rule.check.__module__.rpartition(".")[2] for rule in RULES.values()}
    assert listed == modules


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_no_rule_finds_fault_with_anothers_valid_examples_by_accident(rule: Rule) -> None:
    """Examples are accepted by their own rule; here every other rule is run for crashes and for findings in place."""
    for example in (*rule.valid, *rule.invalid):
        for one in check_file(example.path, example.source.encode(), example.context):
            assert 1 <= one.line <= max(example.source.count("\n") + 1, 1)


def test_suppression_accepts_on_the_line_and_above() -> None:
    on = b"y = x.long()  # porter: ignore[PT105] by contract\n"
    above = b"# porter: ignore[PT105] by contract\ny = x.long()\n"
    long = b"y = f(\n    x.long(),\n    1,\n)  # porter: ignore[PT105] by contract\n"
    for source in (on, above, long):
        assert check_file("overrides/shared/x.py", b'"""Doc."""\n' + source) == []


def test_suppression_holds_for_its_line_alone() -> None:
    source = b'"""Doc."""\n# porter: ignore[PT105] by contract\ny = x.long()\nz = x.long()\n'
    (found,) = check_file("overrides/shared/x.py", source)
    assert (found.code, found.line) == ("PT105", 4)


def test_sync_comment_covers_a_statement_of_several_lines() -> None:
    source = b'"""Doc."""\nn = f(\n    x.item(),  # NEURON: host sync: the bound\n)\n'
    assert check_file("overrides/shared/x.py", source) == []


def test_sync_comment_above_an_if_covers_its_condition_alone() -> None:
    source = b'"""Doc."""\n# NEURON: host sync: the bound\nif x.item() > 1:\n    y = x.item()\n'
    (found,) = check_file("overrides/shared/x.py", source)
    assert (found.code, found.line) == ("PT103", 4)


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"x = (", b"def f(:\n", b"\x00", ("x = " + "(" * 3000 + ")" * 3000).encode()]
)
def test_file_that_cannot_be_parsed_is_a_finding(data: bytes) -> None:
    (found,) = check_file("overrides/tilelang_ops/a.py", data)
    assert found.code == "PT100"


def test_findings_come_in_order_and_once() -> None:
    source = b"import torch\ny = torch.zeros(3, dtype=torch.int64)\nz = x.cuda()\nw = x.long()\n"
    found = check_file("overrides/tilelang_ops/a.py", source)
    assert found == sorted(set(found), key=lambda one: (one.line, one.code))
    assert [(one.line, one.code) for one in found] == [
        (1, "PT106"),
        (2, "PT102"),
        (2, "PT105"),
        (3, "PT101"),
        (4, "PT105"),
    ]


def test_written_arguments_come_from_the_context() -> None:
    source = b'"""After ``tilelang_ops.asc.a``."""\ndef a_tl(n):\n    def a(x, out):\n        out = x\n    return a\n'
    path = "overrides/tilelang_ops/a.py"
    assert check_file(path, source) == []
    context = RuleContext(written={"a_tl": frozenset({"out"})})
    assert [one.code for one in check_file(path, source, context)] == ["PT107"]


def test_overrides_of_this_project_are_parsed() -> None:
    """No override makes a rule crash, and none is unreadable."""
    root = Path(__file__).parents[2]
    files = sorted((root / "overrides").rglob("*.py"))
    assert len(files) >= 20
    for path in files:
        found = check_file(path.relative_to(root).as_posix(), path.read_bytes())
        assert not [one for one in found if one.code == "PT100"]
