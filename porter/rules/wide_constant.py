"""PT118: constants fit 32 bits (ESFH002).

The compiler refuses a 64-bit constant outside the 32-bit range, such as a sentinel of 2**63 - 1. Numbers that only Python
computes with, and that are split into words before they meet a tensor, are fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile

_LOW, _HIGH = -(1 << 31), (1 << 32) - 1


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Constants out of range that meet a tensor."""
    constants = _module_constants(file)
    value_of = partial(_constant, constants=constants, file=file)
    for node in file.of(cst.BinaryOperation, cst.Comparison, cst.Call):
        met: list[cst.BaseExpression] = []
        if isinstance(node, cst.BinaryOperation):
            met = _beside(node.left, node.right, file)
        elif isinstance(node, cst.Comparison):
            for one in node.comparisons:
                met += _beside(node.left, one.comparator, file)
        elif isinstance(node, cst.Call) and _meets_tensor(node, file):
            met = [one.value for one in node.args]
        for operand in met:
            number = value_of(operand)
            if number is not None and not _LOW <= number <= _HIGH:
                yield Problem(
                    "the compiler refuses constants beyond 32 bits (ESFH002)",
                    node,
                    "a constant of 32 bits",
                    str(number),
                    "split it into two 32-bit words",
                )


def _meets_tensor(node: cst.Call, file: SourceFile) -> bool:
    """Does a call bring its arguments to a tensor?"""
    name = file.torch(node.func)
    if name:
        return name not in ("iinfo", "finfo", "device", "Size")
    _, owner = file.method(node)
    return owner is not None and bool(file.value(owner).tensor)


def _beside(left: cst.BaseExpression, right: cst.BaseExpression, file: SourceFile) -> list[cst.BaseExpression]:
    """The operand that meets a tensor."""
    if file.value(left).tensor:
        return [right]
    return [left] if file.value(right).tensor else []


def _module_constants(file: SourceFile) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in file.module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if (
                isinstance(statement, cst.Assign)
                and len(statement.targets) == 1
                and isinstance(statement.targets[0].target, cst.Name)
            ):
                number = _constant(statement.value, constants=found, file=file)
                if number is not None:
                    found[statement.targets[0].target.value] = number
    return found


def _constant(node: cst.CSTNode, *, constants: dict[str, int], file: SourceFile) -> int | None:
    if isinstance(node, cst.Integer):
        return int(node.value.replace("_", ""), 0)
    if isinstance(node, cst.Name):
        return constants.get(node.value)
    if isinstance(node, cst.UnaryOperation):
        inner = _constant(node.expression, constants=constants, file=file)
        if inner is None:
            return None
        return (
            -inner
            if isinstance(node.operator, cst.Minus)
            else ~inner if isinstance(node.operator, cst.BitInvert) else None
        )
    if isinstance(node, cst.Attribute) and node.attr.value in ("max", "min") and isinstance(node.value, cst.Call):
        return _limit(node, file)
    if isinstance(node, cst.BinaryOperation):
        one = _constant(node.left, constants=constants, file=file)
        two = _constant(node.right, constants=constants, file=file)
        return None if one is None or two is None else _computed(node.operator, one, two)
    return None


def _limit(node: cst.Attribute, file: SourceFile) -> int | None:
    call = node.value
    if not isinstance(call, cst.Call) or file.torch(call.func) != "iinfo" or not call.args:
        return None
    dtype = file.value(call.args[0].value).dtype
    if dtype == "int64":
        return (1 << 63) - 1 if node.attr.value == "max" else -(1 << 63)
    return None


def _computed(operator: cst.BaseBinaryOp, one: int, two: int) -> int | None:
    if isinstance(operator, cst.LeftShift) and 0 <= two < 128:
        return one << two
    if isinstance(operator, cst.Power) and 0 <= two < 128 and abs(one) < 1 << 64:
        return int(one**two)
    if isinstance(operator, cst.Add):
        return one + two
    if isinstance(operator, cst.Subtract):
        return one - two
    if isinstance(operator, cst.Multiply):
        return one * two
    return None


RULE = Rule(
    code="PT118",
    name="wide-constant",
    title="A constant beyond 32 bits meets a tensor, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x & 0xFFFF\n",
        "import os\nlimit = os.environ.get('LIMIT', 1 << 40)\n",
        "GOLDEN = 0x9E3779B97F4A7C15\nlow = GOLDEN & 0xFFFFFFFF\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x.masked_fill(x > 0, -(1 << 31))\n",
    ),
    invalid=examples(
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x & 0xFFFFFFFFFF\n",
        "import torch\nTOP = (1 << 63) - 1\ndef f(x: torch.Tensor) -> None:\n    y = x == TOP\n",
        "import torch\ny = torch.full((3,), 2**40, dtype=torch.int32, device=x.device)\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x.clamp(max=torch.iinfo(torch.int64).max)\n",
    ),
)
