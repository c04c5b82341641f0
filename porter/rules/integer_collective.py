"""PT116: a reducing collective is of floats (EVRF061, EVRF063).

The compiler refuses ``all_reduce`` and ``reduce_scatter`` of 32- and 64-bit integers. They are cast to float32 first.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import is_integer
from porter.rules.source import SourceFile

_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce", "all_reduce_coalesced"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Reducing collectives of an evident integer tensor."""
    for node in file.calls():
        space, _, last = file.dotted(node.func).rpartition(".")
        if last not in _REDUCING or not space.startswith("torch.distributed"):
            continue
        if any(is_integer(one.value, file) for one in node.args):
            yield Problem(
                f"the compiler refuses {last} of integers (EVRF061)",
                node,
                "a float tensor",
                f"{last} of integers",
                "cast to float32 first",
            )


RULE = Rule(
    code="PT116",
    name="integer-collective",
    title="A reducing collective of integers, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch.distributed as dist\ndist.all_reduce(x)\n",
        "import torch\nimport torch.distributed as dist\ndist.all_gather_into_tensor(y, x.to(torch.int32))\n",
    ),
    invalid=examples(
        "import torch\nimport torch.distributed as dist\ncount = x.to(torch.int32)\ndist.all_reduce(count)\n",
        "import torch\nfrom torch.distributed import all_reduce\nall_reduce(x.to(torch.int32))\n",
    ),
)
