"""PT114: a right shift is of int32 (EVRF022).

The compiler takes an arithmetic right shift of 32-bit integers only. Bytes (packed FP4, ue8m0 scales) are cast to int32
before they are shifted.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.infer import INTEGERS
from porter.rules.operands import operation
from porter.rules.source import SourceFile


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Right shifts of an evident integer tensor of another width."""
    for node in file.of(cst.BinaryOperation, cst.AugAssign, cst.Call):
        shifted: cst.BaseExpression | None = None
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.RightShift):
            shifted = node.left
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.RightShiftAssign):
            shifted = node.target if isinstance(node.target, cst.BaseExpression) else None
        elif isinstance(node, cst.Call):
            word, operands = operation(node, file)
            if word in ("bitwise_right_shift", "bitwise_right_shift_", "__rshift__") and operands:
                shifted = operands[0]
        if shifted is None:
            continue
        value = file.value(shifted)
        if value.tensor and value.dtype in INTEGERS and value.dtype not in ("int32", "uint32"):
            yield Problem(
                "the compiler shifts 32-bit integers only (EVRF022)",
                node,
                "int32 >> n",
                f"{value.dtype} >> n",
                "cast with .to(torch.int32) before the shift",
            )


RULE = Rule(
    code="PT114",
    name="narrow-shift",
    title="A right shift of something other than int32, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = x.to(torch.int32) >> 4\n",
        "y = x >> 4\n",
        "n = 12 >> 2\n",
    ),
    invalid=examples(
        "import torch\ny = x.view(torch.uint8) >> 4\n",
        "import torch\nb = x.to(torch.int8)\nb >>= 1\n",
        "import torch\ny = torch.bitwise_right_shift(x.view(torch.int16), 7)\n",
    ),
)
