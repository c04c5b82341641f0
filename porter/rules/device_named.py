"""PT101: a kernel names no device.

A kernel runs wherever its arguments are: on ``neuron``, and on the CPU for tests. It allocates on the inputs' device
(``device=x.device``) and asks no tensor where it is. Refused are device names in strings, calls of ``torch.device``,
methods that move to a named device (``.cuda()``, ``.cpu()``), a device's own module (``torch.cuda``) and questions for a
device (``.is_cuda``). ``.cpu()`` is accepted where a ``# NEURON: host sync`` comment isolates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile
from porter.surface.text import literal

_NAMES = ("cuda", "neuron", "cpu", "npu", "xla", "xpu", "mps", "hpu", "mtia", "privateuseone", "musa", "mlu")
_WORD = re.compile(rf"(?:{'|'.join(_NAMES)})(?::\d+)?")
_MODULES = frozenset(name for name in _NAMES if name not in ("privateuseone",))
_FIX = "allocate with device=<an input>.device and leave placement to the caller"


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Device names in code."""
    for node in file.of(cst.SimpleString, cst.Call, cst.Attribute):
        if isinstance(node, cst.SimpleString):
            yield from _string(node, file)
        elif isinstance(node, cst.Call):
            yield from _call(node, file)
        elif isinstance(node, cst.Attribute):
            yield from _attribute(node, file)


def _string(node: cst.SimpleString, file: SourceFile) -> Iterator[Problem]:
    value = literal(node.value)
    if isinstance(value, str) and _WORD.fullmatch(value) and not isinstance(file.parents.get(id(node)), cst.Expr):
        yield Problem(f'the device "{value}" is named', node, "no device named in code", node.value, _FIX)


def _call(node: cst.Call, file: SourceFile) -> Iterator[Problem]:
    if file.torch(node.func) in ("device", "set_default_device", "accelerator.current_accelerator"):
        yield Problem("a device is made", node, "the device of an input", f"torch.{file.torch(node.func)}(...)", _FIX)
    word, owner = file.method(node)
    if owner is None or word not in _MODULES or file.value(owner).tensor is False:
        return
    if word == "cpu" and file.sync_marks(node):
        return
    yield Problem(f"a tensor is moved by .{word}()", node, "tensors stay on their inputs' device", f".{word}()", _FIX)


def _attribute(node: cst.Attribute, file: SourceFile) -> Iterator[Problem]:
    name = file.torch(node)
    if name in _MODULES and not isinstance(file.parents.get(id(node)), cst.ImportFrom):
        yield Problem(
            f"torch.{name} is one device's module", node, "calls that every device has", f"torch.{name}", _FIX
        )
    word = node.attr.value
    if word.startswith("is_") and word[3:] in _MODULES:
        yield Problem(f"code asks .{word}", node, "one body for every device", f".{word}", _FIX)


RULE = Rule(
    code="PT101",
    name="device-named",
    title="A kernel names a device.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ny = torch.zeros(3, device=x.device)\n",
        "import torch\ndef f(x: torch.Tensor, device: torch.device) -> torch.Tensor:\n    return x.to(device)\n",
        '"""cuda and cpu may be named in words."""\n',
        "# NEURON: host sync: the plan is made on the host\nplan = x.cpu()\n",
        "count = platform.cpu_count()\n",
        'kind = "cpu_offload"\n',
    ),
    invalid=examples(
        'import torch\ny = torch.zeros(3, device="cuda")\n',
        "y = x.to('neuron:0')\n",
        "import torch\nd = torch.device(x.device.type)\n",
        "from torch import device\nd = device(0)\n",
        "y = x.cuda()\n",
        "y = x.cpu()\n",
        "import torch\ntorch.cuda.synchronize()\n",
        "flag = x.is_cuda\n",
        'if x.device.type == "npu":\n    pass\n',
    ),
)
