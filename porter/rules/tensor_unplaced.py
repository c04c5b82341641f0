"""PT102: a tensor is made on its inputs' device.

``torch.zeros(n)`` makes a tensor on the default device, which is the CPU: on the device the kernel then mixes devices, or
copies at every step. Every factory gets ``device=``, or is one that takes its place from a tensor (``x.new_zeros``,
``torch.zeros_like(x)``).
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile

_FACTORIES = frozenset({
    "zeros", "ones", "empty", "full", "arange", "eye", "linspace", "logspace", "rand", "randn", "randint", "randperm",
    "tensor", "scalar_tensor", "empty_strided", "tril_indices", "triu_indices", "range",
})  # fmt: skip


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Factories without a device."""
    for node in file.calls():
        name = file.torch(node.func)
        if name not in _FACTORIES:
            continue
        if any(one.star == "**" or (one.keyword is not None and one.keyword.value == "device") for one in node.args):
            continue
        yield Problem(
            f"torch.{name} makes a tensor on the default device",
            node,
            "device=<an input>.device",
            f"torch.{name}(...) without device=",
            "add device=<an input>.device",
        )


RULE = Rule(
    code="PT102",
    name="tensor-unplaced",
    title="A tensor is made on the default device instead of its inputs'.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = torch.arange(4, dtype=torch.int32, device=x.device)\n",
        "import torch\ny = torch.zeros_like(x)\n",
        "y = x.new_empty(3)\n",
        "import torch\ny = torch.empty(3, **like)\n",
    ),
    invalid=examples(
        "import torch\ny = torch.zeros(3)\n",
        "import torch as t\ny = t.arange(4, dtype=t.int32)\n",
        "from torch import tensor\ny = tensor([1.0])\n",
    ),
)
