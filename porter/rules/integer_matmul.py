"""PT115: a matrix product is of floats (EVRF035).

The compiler refuses products of integer matrices. They are cast to float32 first, which is exact for products whose sums
stay below 2**24.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import is_integer, operation
from porter.rules.source import SourceFile

PRODUCTS = frozenset({
    "matmul", "mm", "bmm", "addmm", "addmm_", "baddbmm", "mv", "addmv", "dot", "inner", "einsum", "linear", "tensordot",
    "_grouped_mm", "outer",
})  # fmt: skip


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Products with an evident integer operand."""
    for node in file.of(cst.BinaryOperation, cst.Call):
        operands: list[cst.BaseExpression] = []
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
            operands = [node.left, node.right]
        elif isinstance(node, cst.Call):
            word, found = operation(node, file)
            operands = found if word in PRODUCTS - {"outer"} else []
        if any(is_integer(one, file) for one in operands):
            yield Problem(
                "the compiler refuses products of integer matrices (EVRF035)",
                node,
                "float operands",
                "an integer operand",
                "cast to float32 first",
            )


RULE = Rule(
    code="PT115",
    name="integer-matmul",
    title="A product of integer matrices, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples("y = a @ b\n", "import torch\ny = a.to(torch.int32).float() @ b\n", "y = a.to(torch.int32) * b\n"),
    invalid=examples(
        "import torch\ny = a.to(torch.int32) @ b\n",
        "import torch\ny = torch.matmul(a, b.view(torch.int8))\n",
        "import torch\nc = torch.arange(4, dtype=torch.int32, device=a.device)\ny = torch.einsum('i,ij->j', c, a)\n",
    ),
)
