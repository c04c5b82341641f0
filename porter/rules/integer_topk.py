"""PT112: ``topk`` takes floats (EVRF013).

The compiler refuses ``topk`` of int32 and int64. Integers below 2**24 are exact in float32, so they are cast first;
larger ones are compared in two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import is_integer, operation
from porter.rules.source import SourceFile


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """topk of an evident integer tensor."""
    for node in file.calls():
        word, operands = operation(node, file)
        if word == "topk" and operands and is_integer(operands[0], file):
            dtype = file.value(operands[0]).dtype
            yield Problem(
                "the compiler refuses topk of integers (EVRF013)",
                node,
                "topk of a float tensor",
                f"topk of {dtype}",
                "cast to float32 first",
            )


RULE = Rule(
    code="PT112",
    name="integer-topk",
    title="topk of an integer tensor, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = x.to(torch.int32).to(torch.float32).topk(4)\n",
        "y = x.topk(4)\n",
    ),
    invalid=examples(
        "import torch\ny = x.to(torch.int32).topk(4)\n",
        "import torch\nkeys = torch.arange(9, dtype=torch.int32, device=x.device)\nvalues, index = torch.topk(keys, 4)\n",
    ),
)
