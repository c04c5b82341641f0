"""PT119: FP8 is ``float8_e4m3fn``, and is widened before a product (EVRF005, EVRF051).

The compiler refuses the ``fnuz`` formats, and on Trainium 2 an operand of ``float8_e4m3fn``. Tensors are kept as bytes or
as ``float8_e4m3fn`` and cast to bf16, which is lossless, before they are multiplied. ``torch._scaled_mm`` runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.integer_matmul import PRODUCTS
from porter.rules.operands import dtype_mentions, operation
from porter.rules.source import SourceFile

_FOREIGN = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """FP8 formats and products that the compiler refuses."""
    for dtype in dtype_mentions(file, _FOREIGN):
        yield Problem(
            "the compiler refuses fnuz formats (EVRF005)",
            dtype,
            "torch.float8_e4m3fn",
            f"torch.{file.torch(dtype)}",
            "use torch.float8_e4m3fn",
        )
    for node in file.of(cst.BinaryOperation, cst.Call):
        operands: list[cst.BaseExpression] = []
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
            operands = [node.left, node.right]
        elif isinstance(node, cst.Call):
            word, found = operation(node, file)
            operands = found if word in PRODUCTS else []
            if file.torch(node.func) in ("_scaled_mm", "_scaled_grouped_mm"):
                yield Problem(
                    "torch._scaled_mm runs on the host",
                    node,
                    "a product of bf16",
                    f"torch.{file.torch(node.func)}",
                    "cast to bfloat16, multiply, then scale",
                )
        if any(file.value(one).tensor and (file.value(one).dtype or "").startswith("float8") for one in operands):
            yield Problem(
                "the compiler refuses FP8 operands on Trainium 2 (EVRF051)",
                node,
                "bf16 operands",
                "an FP8 operand",
                "cast to bfloat16 first, which is lossless",
            )


RULE = Rule(
    code="PT119",
    name="float8-form",
    title="An FP8 format or product that the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = x.to(torch.float8_e4m3fn)\n",
        "import torch\ny = x.view(torch.float8_e4m3fn).to(torch.bfloat16) @ w\n",
    ),
    invalid=examples(
        "import torch\ny = x.to(torch.float8_e4m3fnuz)\n",
        "import torch\ny = x.view(torch.float8_e4m3fn) @ w\n",
        "import torch\ny = torch._scaled_mm(a, b, s, t)\n",
    ),
)
