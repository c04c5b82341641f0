"""Drift between two readings: each kind of change under its own name, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from porter.drift import ChangeKind, compare
from porter.report import drift as report
from porter.surface.model import (
    Contract,
    Kernel,
    KernelArgument,
    Parameter,
    Signature,
    Surface,
    Symbol,
    SymbolKind,
    TensorSpec,
)
from porter.surface.sketch import similarity

BODY = "".join(f"{value:08x}" for value in range(24))
OTHER = "".join(f"{value:08x}" for value in range(100, 124))


def factory(name: str = "m.f_tl", **changes: object) -> Symbol:
    symbol = Symbol(
        id=name,
        source="s",
        kind=SymbolKind.FACTORY,
        module="m",
        qualname=name.rpartition(".")[2],
        path="m.py",
        line=3,
        signature=Signature((Parameter("n", annotation="int"), Parameter("eps", default="1e-06"))),
        contract=Contract(
            (Kernel("k", "prim_func", (KernelArgument("x", TensorSpec("tensor", ("n",), "T.bfloat16"), False),)),)
        ),
        own="o",
        body="b",
        sketch=BODY,
    )
    return replace(symbol, **changes)  # type: ignore[arg-type]


def surface(*symbols: Symbol) -> list[Surface]:
    return [Surface("s", symbols=symbols)]


def argument(spec: TensorSpec, written: bool | None = False) -> Contract:
    return Contract((Kernel("k", "prim_func", (KernelArgument("x", spec, written),)),))


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (
            {"signature": Signature((Parameter("n", annotation="int"), Parameter("eps", default="1e-05")))},
            ChangeKind.SIGNATURE,
        ),
        (
            {"signature": Signature((Parameter("n", annotation="str"), Parameter("eps", default="1e-06")))},
            ChangeKind.SIGNATURE,
        ),
        (
            {"signature": Signature((Parameter("eps", default="1e-06"), Parameter("n", annotation="int")))},
            ChangeKind.SIGNATURE,
        ),
        (
            {"signature": Signature((Parameter("m", annotation="int"), Parameter("eps", default="1e-06")))},
            ChangeKind.SIGNATURE,
        ),
        ({"kind": SymbolKind.FUNCTION}, ChangeKind.SIGNATURE),
        ({"contract": argument(TensorSpec("tensor", ("n",), "T.float32"))}, ChangeKind.CONTRACT),
        ({"contract": argument(TensorSpec("tensor", ("n", "2"), "T.bfloat16"))}, ChangeKind.CONTRACT),
        ({"contract": argument(TensorSpec("strided", ("n",), "T.bfloat16", ("s",)))}, ChangeKind.CONTRACT),
        ({"contract": argument(TensorSpec("tensor", ("n",), "T.bfloat16"), True)}, ChangeKind.CONTRACT),
        ({"contract": replace(factory().contract, out_idx="[0]")}, ChangeKind.CONTRACT),  # type: ignore[type-var]
        ({"body": "c"}, ChangeKind.BODY),
    ],
)
def test_each_change_is_reported_under_its_kind(changed: dict[str, object], kind: ChangeKind) -> None:
    rows = compare(surface(factory()), surface(factory(**changed)))
    assert [(row.symbol, row.kind) for row in rows] == [("m.f_tl", kind)]


@pytest.mark.parametrize("changed", [{}, {"line": 9}, {"path": "n.py"}, {"aliases": ("x.f_tl",)}, {"own": "p"}])
def test_what_means_the_same_is_no_change(changed: dict[str, object]) -> None:
    assert compare(surface(factory()), surface(factory(**changed))) == ()


def test_the_strongest_kind_names_the_row_and_the_others_are_kept() -> None:
    (row,) = compare(
        surface(factory()), surface(factory(body="c", contract=argument(TensorSpec("tensor", ("n",), "T.int8"))))
    )
    assert (row.kind, row.also) == (ChangeKind.CONTRACT, (ChangeKind.BODY,))
    assert row.old is not None and row.old.signature == "" and row.old.contract != ""


def test_added_and_removed() -> None:
    rows = compare(surface(factory()), surface(factory("m.g_tl", sketch=OTHER, own="q")))
    assert {(row.symbol, row.kind) for row in rows} == {("m.f_tl", ChangeKind.REMOVED), ("m.g_tl", ChangeKind.ADDED)}


def test_a_rename_is_proposed_once_and_for_the_best_match() -> None:
    near = "".join(f"{value:08x}" for value in [*range(22), 200, 201])
    new = surface(factory("m.g_tl", sketch=near, own="q"), factory("m.h_tl", own="o"))
    rows = {row.symbol: row for row in compare(surface(factory()), new)}
    assert rows["m.f_tl"].kind is ChangeKind.RENAMED
    assert rows["m.f_tl"].new is not None and rows["m.f_tl"].new.symbol == "m.h_tl"
    assert rows["m.g_tl"].kind is ChangeKind.ADDED


def test_a_moved_module_is_proposed_as_a_rename() -> None:
    (row,) = compare(surface(factory()), surface(factory("n.f_tl", module="n")))
    assert row.kind is ChangeKind.RENAMED and row.similarity == 1.0


def test_similarity_of_sketches() -> None:
    assert similarity(BODY, BODY) == 1.0
    assert similarity(BODY, OTHER) == 0.0
    assert similarity("", BODY) == 0.0


def test_json_form() -> None:
    data = json.loads(report.as_json(compare(surface(factory()), surface(factory(body="c")))))
    assert data["version"] == 1
    (row,) = data["changes"]
    assert {"symbol", "source", "kind", "old", "new", "file", "line"} <= set(row)
    assert (row["symbol"], row["kind"], row["file"], row["line"]) == ("m.f_tl", "body", "m.py", 3)


def test_text_and_markdown_hold_every_symbol() -> None:
    rows = compare(surface(factory()), surface(factory("m.g_tl", sketch=OTHER, own="q")))
    for form in ("text", "markdown"):
        text = report.FORMATS[form](rows)
        assert "m.f_tl" in text and "m.g_tl" in text and "2 symbols changed: 1 added, 1 removed" in text
