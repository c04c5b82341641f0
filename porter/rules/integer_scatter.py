"""PT113: sums by index are of floats (EVRF016, EVRF060).

The compiler refuses reductions by index (``scatter_add``, ``index_add``, ``scatter_reduce``, ``index_put_`` with
``accumulate``) of integers and booleans. Overwriting by index is fine. Counts are made in float32, which is exact up to
2**24, or by comparing with every bin and summing.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import operation
from porter.rules.source import SourceFile

_REDUCES = frozenset({"scatter_add", "index_add", "scatter_reduce", "index_reduce"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Reductions by index of an evident integer or boolean tensor."""
    for node in file.calls():
        word, operands = operation(node, file)
        bare = word.removesuffix("_")
        reduces = (
            bare in _REDUCES
            or (bare == "scatter" and _keyword(node, "reduce"))
            or (bare == "index_put" and _accumulates(node))
        )
        if not reduces or not operands:
            continue
        value = file.value(operands[0])
        if value.tensor and (value.dtype == "bool" or (value.dtype or "").startswith(("int", "uint"))):
            yield Problem(
                "the compiler refuses sums by index of integers (EVRF016)",
                node,
                "a float tensor",
                f"{word} of {value.dtype}",
                "add in float32 and cast the result, or compare with every bin and sum",
            )


def _keyword(node: cst.Call, name: str) -> bool:
    return any(one.keyword is not None and one.keyword.value == name for one in node.args)


def _accumulates(node: cst.Call) -> bool:
    positional = [one.value for one in node.args if one.keyword is None]
    given = next(
        (one.value for one in node.args if one.keyword is not None and one.keyword.value == "accumulate"), None
    )
    given = given if given is not None else positional[2] if len(positional) > 2 else None
    return isinstance(given, cst.Name) and given.value == "True"


RULE = Rule(
    code="PT113",
    name="integer-scatter",
    title="A sum by index of integers, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\nmarks = torch.zeros(4, dtype=torch.float32, device=x.device)\nmarks.index_add_(0, x, ones)\n",
        "import torch\ny = torch.zeros(4, dtype=torch.int32, device=x.device)\ny.scatter_(0, x, one)\ny.index_put_((x,), one)\n",
        "def f(marks, x, ones):\n    marks.index_add_(0, x, ones)\n",
    ),
    invalid=examples(
        "import torch\nmarks = torch.zeros(4, dtype=torch.int32, device=x.device)\nmarks.index_add_(0, x, ones)\n",
        "import torch\ny = torch.zeros(4, dtype=torch.int32, device=x.device).scatter_add(0, x, ones)\n",
        "seen = x.float() > 0\nseen.scatter_(0, i, one, reduce='add')\n",
        "import torch\ny = x.to(torch.int32)\ny.index_put_((i,), one, accumulate=True)\n",
    ),
)
