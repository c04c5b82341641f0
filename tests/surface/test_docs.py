"""Docstrings become facts; sentences do not survive."""

from __future__ import annotations

import pytest

from porter.surface.docs import doc_facts
from porter.surface.model import DocFact


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("x: [n, D] contiguous", DocFact("x", "[n, D]", None, ("contiguous",))),
        ("index: [m] int32 rows of x", DocFact("index", "[m]", "int32", ())),
        (
            "- out (torch.Tensor): (b, s, k), dtype torch.bfloat16, written in place",
            DocFact("out", "[b, s, k]", "bfloat16", ("in-place", "output")),
        ),
        ("w: optional fp32 weights", DocFact("w", None, "fp32", ("optional",))),
        ("y: [m, n // 2 + 1] non-contiguous", DocFact("y", "[m, n // 2 + 1]", None, ("strided",))),
        ("scale: (n,) float32", DocFact("scale", "[n]", "float32", ())),
    ],
)
def test_entries(line: str, fact: DocFact) -> None:
    assert doc_facts(f"Moves rows.\n\nArgs:\n    {line}\n") == (fact,)


@pytest.mark.parametrize(
    "line",
    [
        "Note: [n] rows are moved",
        "x: the rows to move (see above)",
        "Moves rows: quickly",
        "Returns: int32 [n]",
        "plain words",
        "",
    ],
)
def test_no_entry(line: str) -> None:
    assert doc_facts(line) == ()


def test_several_names_and_the_first_entry_counts() -> None:
    facts = doc_facts("q, k: [n, 4] bf16\nq: [m]\n")
    assert facts == (DocFact("q", "[n, 4]", "bf16"), DocFact("k", "[n, 4]", "bf16"))
