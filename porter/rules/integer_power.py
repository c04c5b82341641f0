"""PT117: no powers of int64 (EVRF062).

The compiler refuses ``pow`` of 64-bit integers. A power of two is a shift; another one is made in int32 or float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import operation
from porter.rules.source import SourceFile


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Powers with an evident int64 operand."""
    for node in file.of(cst.BinaryOperation, cst.Call):
        operands: list[cst.BaseExpression] = []
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
            operands = [node.left, node.right]
        elif isinstance(node, cst.Call):
            word, found = operation(node, file)
            operands = found if word in ("pow", "pow_", "float_power") else []
        if any(file.value(one).tensor and file.value(one).dtype == "int64" for one in operands):
            yield Problem(
                "the compiler refuses powers of int64 (EVRF062)",
                node,
                "int32 or float32",
                "a power of int64",
                "cast to int32 or float32 first",
            )


RULE = Rule(
    code="PT117",
    name="integer-power",
    title="A power of int64, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples("y = x ** 2\n", "import torch\ny = x.to(torch.int32) ** 2\n", "n = 2 ** 40\n"),
    invalid=examples("import torch\ny = x.to(torch.int64) ** 2\n", "import torch\ny = torch.pow(x.long(), 2)\n"),
)
