"""PT111: a kernel computes with real numbers (EVRF004).

The compiler refuses complex dtypes. A rotary embedding written with ``view_as_complex`` becomes two real products and two
sums; a Fourier transform has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import dtype_mentions, operation
from porter.rules.source import SourceFile

_DTYPES = frozenset({"complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"})
_MAKERS = frozenset({"complex", "polar", "view_as_complex", "view_as_real"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Complex numbers, however they come in."""
    for dtype in dtype_mentions(file, _DTYPES):
        yield _problem(dtype, f"torch.{file.torch(dtype)}")
    for node in file.of(cst.Imaginary, cst.Call):
        if isinstance(node, cst.Imaginary):
            yield _problem(node, node.value)
        elif isinstance(node, cst.Call):
            name = file.torch(node.func)
            word, _ = operation(node, file)
            if name in _MAKERS or name.startswith("fft."):
                yield _problem(node, f"torch.{name}")
            elif not name and word in ("view_as_complex", "cfloat", "cdouble", "chalf"):
                yield _problem(node, f".{word}()")


def _problem(node: cst.CSTNode, found: str) -> Problem:
    return Problem(
        "the compiler refuses complex numbers (EVRF004)",
        node,
        "real arithmetic on two parts",
        found,
        "keep real and imaginary parts apart",
    )


RULE = Rule(
    code="PT111",
    name="complex-number",
    title="A kernel uses complex numbers, which the compiler refuses.",
    doc=__doc__,
    check=check,
    valid=examples("import torch\ny = x[..., 0] * c - x[..., 1] * s\n", "import torch\nz = 1.0\n"),
    invalid=examples(
        "import torch\ny = torch.view_as_complex(x)\n",
        "import torch\ny = x.to(torch.complex64)\n",
        "import torch\ny = torch.polar(r, a)\n",
        "y = x * 1j\n",
        "import torch\ny = torch.fft.rfft(x)\n",
    ),
)
