"""PT120: shapes are static (EMOD025).

The compiler refuses every dynamic dimension. A size comes from shapes and Python numbers, never from a tensor's values; a
kernel marks no dimension as dynamic and resizes no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile

_MARKS = frozenset({
    "_dynamo.mark_dynamic", "_dynamo.maybe_mark_dynamic", "_dynamo.decorators.mark_unbacked", "_dynamo.mark_unbacked",
    "export.Dim", "export.dims", "SymInt", "_check_is_size", "compiler.mark_dynamic",
})  # fmt: skip
_SIZED = frozenset({"zeros", "ones", "empty", "full", "rand", "randn", "arange", "eye"})
_RESHAPES = frozenset(
    {"view", "reshape", "expand", "narrow", "unflatten", "new_empty", "new_zeros", "new_ones", "new_full", "repeat"}
)


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Dynamic dimensions, however they come in."""
    for node in file.calls():
        name = file.torch(node.func)
        if name in _MARKS:
            yield _problem(node, f"torch.{name}")
        elif name == "compile" and _is_true(file.argument(node, "dynamic")):
            yield _problem(node, "torch.compile(dynamic=True)")
        word, owner = file.method(node)
        if owner is not None and word in ("resize_", "resize_as_") and file.value(owner).tensor is not False:
            yield _problem(node, f".{word}()")
        sized = name in _SIZED or (owner is not None and word in _RESHAPES and file.value(owner).tensor is not False)
        if sized and any(
            _from_tensor(one.value, file)
            for one in node.args
            if one.keyword is None or one.keyword.value in ("size", "end")
        ):
            yield _problem(node, f"a size taken from a tensor in {name or word}()")


def _from_tensor(node: cst.BaseExpression, file: SourceFile) -> bool:
    if isinstance(node, (cst.Tuple, cst.List)):
        return any(_from_tensor(element.value, file) for element in node.elements)
    return bool(file.value(node).tensor)


def _is_true(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def _problem(node: cst.CSTNode, found: str) -> Problem:
    return Problem(
        "the compiler refuses dynamic shapes (EMOD025)",
        node,
        "sizes from shapes and Python numbers",
        found,
        "fix the size and mask the rest",
    )


RULE = Rule(
    code="PT120",
    name="dynamic-shape",
    title="A shape depends on values, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = torch.zeros(x.shape[0], n, device=x.device)\n",
        "import torch\nf = torch.compile(g, dynamic=False)\n",
        "import torch\ndef f(x: torch.Tensor, n: int) -> None:\n    y = x.view(n, -1).expand(n, 4)\n",
        "import torch\ndef f(x: torch.Tensor, y: torch.Tensor) -> None:\n    z = x.view(torch.int32)\n",
    ),
    invalid=examples(
        "import torch\nf = torch.compile(g, dynamic=True)\n",
        "import torch\ntorch._dynamo.mark_dynamic(x, 0)\n",
        "x.resize_(4)\n",
        "import torch\ndef f(lengths: torch.Tensor) -> None:\n    y = torch.zeros(lengths.sum(), device=lengths.device)\n",
        "import torch\ndef f(x: torch.Tensor, n: torch.Tensor) -> None:\n    y = x.view((n, -1))\n",
    ),
)
