"""PT105: integers on the device are 32 bits wide.

The device computes int64 as int32 and a cast to or from 64 bits goes through the CPU. Indices are int32:
``index_select``, ``index_put_`` and advanced indexing take them everywhere. Refused are dtypes of 64 bits asked for
(``dtype=torch.int64``, ``.long()``, ``.to(torch.long)``), and calls that give them when no dtype is said: ``torch.arange``
of integers, ``torch.full`` and ``torch.tensor`` of integers, ``torch.where`` of two integers, and ``sum`` or ``cumsum`` of
an integer or boolean tensor.

Where arithmetic is 64 bits wide by contract, or an operator takes nothing else, the line carries
``# NEURON: 64-bit <reason>``, or the line above does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.infer import canonical
from porter.rules.source import SourceFile

_WIDE = frozenset({"int64", "uint64"})
_DEFAULTS = frozenset(
    {"arange", "full", "tensor", "as_tensor", "randint", "randperm", "tril_indices", "triu_indices", "scalar_tensor"}
)
_WRITES = frozenset({"copy_", "index_copy_", "index_put_", "scatter_", "put_"})
_SUMS = frozenset({"sum", "cumsum", "prod", "cumprod"})


@dataclass(frozen=True)
class Creation:
    """A place where a 64-bit integer tensor comes to be."""

    node: cst.CSTNode
    found: str
    fix: str


def wide_creations(file: SourceFile) -> Iterator[Creation]:
    """Every evident creation of a 64-bit integer tensor, in source order."""
    for node in file.calls():
        asked = next((one.value for one in node.args if _is_wide_dtype(one.value, file)), None)
        name = file.torch(node.func)
        word, owner = file.method(node)
        if asked is not None and name not in ("iinfo", "can_cast", "promote_types", "result_type"):
            if (
                name
                or owner is not None
                or any(one.keyword is not None and one.keyword.value == "dtype" for one in node.args)
            ):
                yield Creation(node, f"{_shown(node)} with torch.{file.value(asked).dtype}", "use torch.int32")
        elif owner is not None and word == "long" and not node.args:
            yield Creation(node, ".long()", "use .to(torch.int32)")
        elif name in ("LongTensor", "cuda.LongTensor"):
            yield Creation(node, f"torch.{name}", "use a tensor of torch.int32")
        elif _defaults_to_wide(node, name, word, owner, file):
            yield Creation(node, f"{_shown(node)} without dtype", "add dtype=torch.int32")


def possible_wides(file: SourceFile) -> Iterator[cst.Call]:
    """Calls that widen to 64 bits if the tensor they write to, or take the dtype of, has them: nobody can tell from the text.

    Not worth a finding, but reason enough for a comment that says so.
    """
    for node in file.calls():
        word, owner = file.method(node)
        if owner is None:
            continue
        if word in _WRITES and file.value(owner).dtype is None:
            yield node
        elif word in ("to", "type") and any(file.dotted(one.value).endswith(".dtype") for one in node.args):
            yield node


def _shown(node: cst.Call) -> str:
    function = node.func
    return f".{function.attr.value}()" if isinstance(function, cst.Attribute) else "the call"


def _is_wide_dtype(node: cst.BaseExpression, file: SourceFile) -> bool:
    value = file.value(node)
    return (
        value.is_dtype
        and value.dtype is not None
        and canonical(value.dtype) in _WIDE
        and isinstance(node, (cst.Attribute, cst.Name))
        and _literal(node, file)
    )


def _literal(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Is the dtype written here, rather than taken from a tensor?"""
    return file.torch(node) != ""


def _defaults_to_wide(node: cst.Call, name: str, word: str, owner: cst.BaseExpression | None, file: SourceFile) -> bool:
    if any(one.star or (one.keyword is not None and one.keyword.value == "dtype") for one in node.args):
        return False
    value = file.value(node)
    if name in _DEFAULTS or name == "where":
        return value.dtype == "int64"
    if name in _SUMS and node.args:
        return _summable(node.args[0].value, file)
    return owner is not None and word in _SUMS and _summable(owner, file)


def _summable(node: cst.BaseExpression, file: SourceFile) -> bool:
    value = file.value(node)
    return bool(value.tensor) and value.dtype in ("bool", "uint8", "int8", "int16", "int32", "int64")


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """64-bit integers without a reason."""
    for creation in wide_creations(file):
        if not file.wide_marks(creation.node):
            yield Problem(
                "a 64-bit integer tensor is made",
                creation.node,
                "int32, or a `# NEURON: 64-bit <reason>` comment",
                creation.found,
                creation.fix,
            )


RULE = Rule(
    code="PT105",
    name="index-dtype",
    title="A kernel makes a 64-bit integer tensor.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = torch.arange(4, dtype=torch.int32, device=x.device)\n",
        "import torch\ny = torch.arange(0.0, 1.0, 0.5)\n",
        "import torch\nassert x.dtype == torch.int64\n",
        "import torch\ny = x.to(torch.int64)  # NEURON: 64-bit: seeds are 64 bits wide\n",
        "import torch\ndef f(m: torch.Tensor) -> None:\n    y = (m > 0).sum(dtype=torch.int32)\n",
        "import torch\ndef f(m: torch.Tensor) -> None:\n    y = m.float().sum()\n",
        "import torch\ny = torch.where(mask, 1.0, 0.0)\n",
        "import torch\ny = torch.empty(3, dtype=x.dtype)\n",
        "import torch\nlimit = torch.iinfo(torch.int64).max\n",
        "import torch\nkinds = {'int64': torch.int64}\n",
    ),
    invalid=examples(
        "import torch\ny = torch.zeros(3, dtype=torch.int64)\n",
        "import torch\ny = torch.zeros(3, dtype=torch.long)\n",
        "from torch import int64\ny = x.to(int64)\n",
        "y = x.long()\n",
        "import torch\ny = torch.arange(4)\n",
        "import torch\ny = torch.arange(n, device=x.device)\n",
        "import torch\ny = torch.full((3,), -1)\n",
        "import torch\ny = torch.tensor([1, 2])\n",
        "import torch\ny = torch.where(mask, 1, 0)\n",
        "import torch\ndef f(m: torch.Tensor) -> None:\n    y = (m > 0).sum()\n",
        "import torch\ndef f(m: torch.Tensor) -> None:\n    y = torch.cumsum(m.to(torch.int32), 0)\n",
        "import torch\ny = x.view(torch.uint64)\n",
        "import torch\n# NEURON: 64-bit\ny = x.to(torch.int64)\n",
    ),
)
