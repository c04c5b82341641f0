"""Shared looks at calls: which operator is meant, and on what."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.infer import INTEGERS
from porter.rules.source import SourceFile


def operation(node: cst.Call, file: SourceFile) -> tuple[str, list[cst.BaseExpression]]:
    """(operator, operands) of ``torch.op(x, ...)`` or ``x.op(...)``, the receiver first; ("", []) for anything else."""
    name = file.torch(node.func)
    positional = [one.value for one in node.args if one.keyword is None and not one.star]
    if name:
        return name.rpartition(".")[2], positional
    word, owner = file.method(node)
    if owner is not None and file.value(owner).tensor is not False:
        return word, [owner, *positional]
    return "", []


def is_integer(node: cst.CSTNode, file: SourceFile) -> bool:
    """Is an expression evidently an integer tensor?"""
    value = file.value(node)
    return bool(value.tensor) and value.dtype in INTEGERS


def dtype_mentions(file: SourceFile, names: frozenset[str]) -> Iterator[cst.BaseExpression]:
    """Places where a torch dtype is written in order to use it: comparisons and annotations only ask."""
    for node in file.of(cst.Attribute, cst.Name):
        if file.torch(node) in names and not _only_asks(node, file):
            yield node


def _only_asks(node: cst.CSTNode, file: SourceFile) -> bool:
    at: cst.CSTNode | None = file.parents.get(id(node))
    if isinstance(at, (cst.Attribute, cst.ImportAlias, cst.AsName, cst.Import, cst.ImportFrom)):
        return True
    if isinstance(at, cst.Arg) and at.keyword is node:
        return True
    while at is not None and not isinstance(at, (cst.BaseSmallStatement, cst.BaseStatement)):
        if isinstance(at, (cst.Comparison, cst.Annotation)):
            return True
        if isinstance(at, cst.Call) and file.torch(at.func) in ("iinfo", "finfo"):
            return True
        if isinstance(at, cst.Call):
            return False
        at = file.parents.get(id(at))
    return False
