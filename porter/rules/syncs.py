"""Where a file makes the host wait for the device.

A synchronisation is a read of a tensor's value by the host: said outright (``.item()``), through Python (``if tensor:``,
``int(tensor)``), or by an operator whose result's shape depends on values (``nonzero``, a boolean mask as index). On the
device each costs a round trip of milliseconds, and a shape that depends on values cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from porter.rules.source import SourceFile

_READS = {
    "item": ".item()", "tolist": ".tolist()", "cpu": ".cpu()", "numpy": ".numpy()", "nonzero": ".nonzero()",
    "masked_select": ".masked_select()", "unique": ".unique()", "unique_consecutive": ".unique_consecutive()",
    "argwhere": ".argwhere()", "is_nonzero": ".is_nonzero()", "bincount": ".bincount()", "equal": ".equal()",
    "allclose": ".allclose()", "count_nonzero_": ".count_nonzero_()",
}  # fmt: skip
# Methods that other things than tensors have: only a receiver that may be a tensor counts.
_SHARED = frozenset({"item", "unique", "equal", "allclose", "numpy", "cpu"})
_TORCH = frozenset({
    "nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "is_nonzero", "bincount", "equal", "allclose",
    "cuda.synchronize", "accelerator.synchronize", "neuron.synchronize", "npu.synchronize", "combinations", "histogram",
})  # fmt: skip
_CONVERSIONS = frozenset(
    {"int", "float", "bool", "str", "round", "range", "print", "list", "tuple", "len_", "set", "hash", "complex"}
)


_KINDS: tuple[type[cst.CSTNode], ...] = (
    cst.Call, cst.Subscript, cst.If, cst.While, cst.IfExp, cst.Assert, cst.CompIf, cst.BooleanOperation, cst.UnaryOperation,
    cst.Comparison, cst.FormattedStringExpression,
)  # fmt: skip


@dataclass(frozen=True)
class Sync:
    """A synchronisation: where, what is written, and what to write instead."""

    node: cst.CSTNode
    found: str
    fix: str


def syncs(file: SourceFile) -> Iterator[Sync]:
    """Every evident synchronisation, in source order."""
    for node in file.of(*_KINDS):
        if isinstance(node, cst.Call):
            yield from _call(node, file)
        elif isinstance(node, cst.Subscript):
            yield from _subscript(node, file)
        elif isinstance(node, (cst.If, cst.While, cst.IfExp, cst.Assert, cst.CompIf)):
            yield from _truth(node.test, file)
        elif isinstance(node, cst.BooleanOperation):
            yield from _truth(node.left, file)
        elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            yield from _truth(node.expression, file)
        elif isinstance(node, cst.Comparison):
            yield from _membership(node, file)
        elif isinstance(node, cst.FormattedStringExpression) and file.value(node.expression).tensor:
            yield Sync(node, "a tensor in an f-string", "show its shape and dtype instead of its values")


_UPLOADS = frozenset({"tensor", "as_tensor"})


def possible_syncs(file: SourceFile) -> Iterator[cst.Call]:
    """Calls that make the host wait if what they get is a tensor, or is moved to the host, or that upload values of the host:
    nobody can tell from the text.

    Not worth a finding, but reason enough for a comment that says so.
    """
    for node in file.of(cst.Call):
        word, owner = file.method(node)
        if isinstance(node.func, cst.Name) and node.func.value in _CONVERSIONS:
            if any(file.value(one.value).tensor is None for one in node.args):
                yield node
        elif (
            file.torch(node.func) in _UPLOADS
            and any(one.keyword and one.keyword.value == "device" for one in node.args)
        ) or (word == "to" and owner is not None and any("device" in file.dotted(one.value) for one in node.args)):
            yield node


def _call(node: cst.Call, file: SourceFile) -> Iterator[Sync]:
    name = file.torch(node.func)
    if name in _TORCH and not _sized(name, node):
        yield Sync(node, f"torch.{name}(...)", _advice(name.rpartition(".")[2]))
        return
    if name == "where" and len(node.args) == 1:
        yield Sync(node, "torch.where(condition)", _advice("nonzero"))
        return
    word, owner = file.method(node)
    if owner is not None and word in _READS and not _sized(word, node):
        if word not in _SHARED or file.value(owner).tensor is not False:
            yield Sync(node, _READS[word], _advice(word))
        return
    if (word == "repeat_interleave" and owner is not None) or name == "repeat_interleave":
        yield from _repeats(node, file, is_method=name != "repeat_interleave")
        return
    if word == "to" and owner is not None and any(_is_cpu(one.value) for one in node.args):
        yield Sync(node, '.to("cpu")', _advice("cpu"))
        return
    if isinstance(node.func, cst.Name) and node.func.value in _CONVERSIONS:
        for one in node.args:
            if file.value(one.value).tensor:
                yield Sync(node, f"{node.func.value}() of a tensor", "keep the value in a tensor")
                return


def _sized(name: str, node: cst.Call) -> bool:
    """``minlength`` does not fix the size of ``bincount``; ``nonzero_static`` has another name."""
    return name == "nonzero" and any(one.keyword is not None and one.keyword.value == "size" for one in node.args)


def _repeats(node: cst.Call, file: SourceFile, *, is_method: bool) -> Iterator[Sync]:
    if any(one.keyword is not None and one.keyword.value == "output_size" for one in node.args):
        return
    repeats = file.argument(node, "repeats", 0 if is_method else 1)
    alone = not is_method and len([one for one in node.args if one.keyword is None]) == 1 and repeats is None
    if alone or (repeats is not None and file.value(repeats).tensor):
        yield Sync(node, "repeat_interleave without output_size", "pass output_size=, which fixes the shape")


def _subscript(node: cst.Subscript, file: SourceFile) -> Iterator[Sync]:
    if file.value(node.value).tensor is False:
        return
    for element in node.slice:
        if isinstance(element.slice, cst.Index):
            value = file.value(element.slice.value)
            if value.tensor and value.dtype == "bool" and not _is_masked_fill(node, file):
                yield Sync(node, "a boolean mask as index", "use torch.where or masked_fill_, which keep the shape")
                return
        elif isinstance(element.slice, cst.Slice):
            bounds = (element.slice.lower, element.slice.upper, element.slice.step)
            if any(bound is not None and file.value(bound).tensor for bound in bounds):
                yield Sync(node, "a slice whose bound is a tensor", "slice by a static size and mask the rest")
                return


def _is_masked_fill(node: cst.Subscript, file: SourceFile) -> bool:
    """``x[mask] = number`` is a masked fill: its shape does not depend on the mask."""
    target = file.parents.get(id(node))
    statement = file.parents.get(id(target)) if isinstance(target, cst.AssignTarget) else None
    if not isinstance(statement, cst.Assign) or len(node.slice) != 1:
        return False
    value = file.value(statement.value)
    return value.tensor is False and value.items is None


def _truth(test: cst.BaseExpression, file: SourceFile) -> Iterator[Sync]:
    if isinstance(test, cst.BooleanOperation):
        # The left side is met as an operation of its own.
        yield from _truth(test.right, file)
    elif file.value(test).tensor:
        yield Sync(test, "a tensor where Python asks for true or false", "choose with torch.where, or decide by shapes")


def _membership(node: cst.Comparison, file: SourceFile) -> Iterator[Sync]:
    for one in node.comparisons:
        if isinstance(one.operator, (cst.In, cst.NotIn)) and file.value(one.comparator).tensor:
            yield Sync(node, "`in` on a tensor", "compare elementwise and reduce on the device")


def _is_cpu(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and node.value.strip("\"'") == "cpu"


def _advice(word: str) -> str:
    return {
        "item": "keep the value in a 0-dimensional tensor",
        "tolist": "work on the tensor as a whole",
        "nonzero": "compute with masks, or nonzero_static(size=...)",
        "argwhere": "compute with masks, or nonzero_static(size=...)",
        "masked_select": "use torch.where, which keeps the shape",
        "equal": "compare in a test, not in a kernel",
        "allclose": "compare in a test, not in a kernel",
        "bincount": "compare with the bins and sum, which keeps the shape",
    }.get(word, "keep the work on the device, with shapes that do not depend on values")
