"""PT110: a kernel computes in float32 at most.

The device has no float64: it computes such a tensor as float32 and only its label says 64 bits, while casts to and from it
go through the CPU. A kernel that needs more than 24 bits splits its numbers into two float32, or into int32 words.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import dtype_mentions
from porter.rules.source import SourceFile

_NAMES = frozenset({"float64", "double", "DoubleTensor"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """float64 asked for."""
    for node in dtype_mentions(file, _NAMES):
        yield _problem(node, f"torch.{file.torch(node)}")
    for call in file.calls():
        word, owner = file.method(call)
        if word == "double" and owner is not None and not call.args and file.value(owner).tensor is not False:
            yield _problem(call, ".double()")


def _problem(node: object, found: str) -> Problem:
    return Problem(
        "the device has no float64",
        node,  # type: ignore[arg-type]
        "float32",
        found,
        "compute in float32, or split the number into two",
    )


RULE = Rule(
    code="PT110",
    name="wide-float",
    title="A kernel uses float64, which the device computes as float32.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = x.to(torch.float32)\n",
        "import torch\nassert x.dtype != torch.float64\n",
        "y = x.float()\n",
    ),
    invalid=examples(
        "import torch\ny = x.to(torch.float64)\n",
        "import torch\nwide = torch.float64 if exact else torch.float32\n",
        "import torch\ny = torch.zeros(3, dtype=torch.double)\n",
        "y = x.double()\n",
    ),
)
