"""PT122: a kernel uses operators that the device has.

An operator without a device kernel runs on the CPU: its arguments are copied to the host and its result back, at every
step. The list is that of a pre-release of the device's torch, so an operator here may have come since; what replaces each
costs nothing. ``max`` and ``min`` along a dimension with indices are refused, without a dimension they are fine, as are
``amax`` and ``amin``. Random numbers come from the host's generator.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile

_INSTEAD = {
    "sort": "topk(k=n), where n is static",
    "msort": "topk(k=n), where n is static",
    "argmax": "topk(1) of a float tensor",
    "argmin": "topk(1, largest=False) of a float tensor",
    "kthvalue": "topk",
    "median": "topk",
    "searchsorted": "compare with every boundary and sum",
    "bucketize": "compare with every boundary and sum",
    "isin": "compare with every element and any()",
    "maximum": "torch.where(a > b, a, b)",
    "minimum": "torch.where(a < b, a, b)",
    "fmax": "torch.where(a > b, a, b)",
    "fmin": "torch.where(a < b, a, b)",
    "floor": "trunc with a fix for negative numbers, or floor_divide",
    "round": "add 0.5 and trunc, mind the ties",
    "exp2": "exp(x * ln 2), or build the exponent's bits in int32",
    "log2": "log(x) / ln 2, or read the exponent's bits in int32",
    "log1p": "log(1 + x)",
    "expm1": "exp(x) - 1",
    "prod": "exp of the sum of logs, or a loop over a static axis",
    "cumprod": "exp of the cumsum of logs, or a loop over a static axis",
    "std": "mean of squares",
    "var": "mean of squares",
    "logsumexp": "amax, exp, sum and log",
    "scatter_reduce": "scatter_add of floats, or a comparison and amax",
    "index_fill": "index_put_ or masked_fill_",
    "masked_scatter": "torch.where",
    "nan_to_num": "torch.where(x != x, 0, x)",
    "baddbmm": "bmm and add",
    "take": "flatten and index_select",
    "put": "flatten and index_put_",
    "atan2": "a polynomial, or the host",
    "frexp": "read the bits in int32",
    "ldexp": "build the bits in int32",
    "multinomial": "Gumbel noise from the host and topk(1)",
    "bernoulli": "noise from the host and a comparison",
    "normal": "noise from the host",
    "uniform": "noise from the host",
    "exponential": "noise from the host",
    "random": "noise from the host",
    "rand": "noise from the host",
    "randn": "noise from the host",
    "randint": "noise from the host",
    "randperm": "noise from the host and topk",
    "rand_like": "noise from the host",
    "randn_like": "noise from the host",
}
# Names that other things than tensors have: a receiver that is evidently no tensor does not count.
_METHOD_ONLY_IN_PLACE = frozenset({"normal", "uniform", "exponential", "random", "bernoulli", "put"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Operators without a device kernel."""
    for node in file.calls():
        name = file.torch(node.func)
        if name.startswith("linalg.") and name not in ("linalg.vector_norm", "linalg.norm"):
            yield _problem(node, f"torch.{name}", "the host")
            continue
        word, owner = (name, None) if name and "." not in name else file.method(node)
        if owner is not None and not file.value(owner).tensor:
            continue
        if name and "." in name:
            continue
        bare = word.removesuffix("_") if word.endswith("_") and not word.endswith("__") else word
        if bare in _INSTEAD and not (owner is not None and bare in _METHOD_ONLY_IN_PLACE and not word.endswith("_")):
            yield _problem(node, f"torch.{word}" if owner is None else f".{word}()", _INSTEAD[bare])
        elif word in ("max", "min") and _along_a_dimension(node, owner, file):
            yield _problem(node, f"{word} along a dimension", "amax or amin, or topk(1) for the index")


def _along_a_dimension(node: cst.Call, owner: cst.BaseExpression | None, file: SourceFile) -> bool:
    given = file.argument(node, "dim", 0 if owner is not None else 1)
    return given is not None and not file.value(given).tensor


def _problem(node: cst.Call, found: str, instead: str) -> Problem:
    return Problem(
        "the operator has no device kernel and runs on the CPU",
        node,
        "an operator of the device",
        found,
        f"use {instead}",
    )


RULE = Rule(
    code="PT122",
    name="host-operator",
    title="An operator without a device kernel runs on the CPU.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x.amax(1)\n    z = x.max()\n    v, i = x.topk(1)\n",
        "rows = sorted(names)\nnames.sort()\nn = max(1, 2)\nm = round(1.5)\n",
        "import math\ny = math.floor(1.5) + math.log2(8)\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x.exp().log().floor_divide(2)\n",
    ),
    invalid=examples(
        "import torch\nv, i = torch.sort(x)\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    i = x.argmax(1)\n",
        "import torch\ny = torch.maximum(a, b)\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    y = x.round_()\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    v, i = x.max(dim=1)\n",
        "import torch\ndef f(x: torch.Tensor) -> None:\n    x.uniform_()\n",
        "import torch\ny = torch.linalg.cholesky(x)\n",
        "import torch\ny = torch.multinomial(p, 1)\n",
    ),
)
