"""PT121: a caller's tensor is written in whole rows.

A write into a contiguous part (``cache[a:b] = x``) costs as much as the part. A write into a strided view
(``cache[:, a:b] = x``, ``cache[..., 0] = x``) copies the whole tensor on the device, and a large one does not compile.
Caches are kept as rows and written by ``index_copy_`` or ``index_put_`` with int32 slots; where a contract asks for inner
columns of a small output, the whole row is built and written once.

A view is contiguous by its form when it is made of single indices first, then at most one slice without a step, then whole
axes. Only arguments are looked at: what a kernel allocates itself is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile, parameters_of

_VIEWS = frozenset({"view", "flatten", "unsqueeze", "squeeze", "view_as", "unflatten"})


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Writes into strided views of arguments."""
    for node in file.of(cst.Assign, cst.AugAssign, cst.Call):
        for written in _written(node):
            view = _strided(written, file)
            if view is None:
                continue
            shown = file.module.code_for_node(view)
            yield Problem(
                "a write into a strided view copies the whole tensor",
                node,
                "a write of whole rows",
                shown,
                "build the rows and write them with index_copy_, index_put_ or one copy_",
            )


def _written(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Assign):
        for target in node.targets:
            if isinstance(target.target, cst.Subscript):
                yield target.target
    elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Subscript):
        yield node.target
    elif isinstance(node, cst.Call):
        function = node.func
        if isinstance(function, cst.Attribute):
            word = function.attr.value
            if word.endswith("_") and not word.endswith("__") and word != "requires_grad_":
                yield function.value
        for one in node.args:
            if one.keyword is not None and one.keyword.value == "out":
                yield one.value


def _strided(node: cst.BaseExpression, file: SourceFile) -> cst.BaseExpression | None:
    """The strided view of an argument that an expression writes through, if it does."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS:
        node = node.func.value
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in ("narrow", "select")
    ):
        axis = file.argument(node, "dim", 0)
        outer = not isinstance(axis, cst.Integer) or axis.value != "0"
        return node if outer and axis is not None and _is_argument(node.func.value, file) else None
    if not isinstance(node, cst.Subscript) or not _is_argument(node.value, file):
        return None
    sliced = False
    for element in node.slice:
        part = element.slice
        if isinstance(part, cst.Slice):
            whole = part.lower is None and part.upper is None and part.step is None
            if not whole and (sliced or _steps(part)):
                return node
            sliced = True
        elif isinstance(part, cst.Index):
            if isinstance(part.value, cst.Ellipsis):
                sliced = True
                continue
            if isinstance(part.value, cst.Name) and part.value.value == "None":
                continue
            value = file.value(part.value)
            if value.tensor is not False:
                return None  # advanced indexing writes by index
            if sliced:
                return node
    return None


def _steps(part: cst.Slice) -> bool:
    return part.step is not None and not (isinstance(part.step, cst.Integer) and part.step.value == "1")


def _is_argument(node: cst.BaseExpression, file: SourceFile) -> bool:
    if not isinstance(node, cst.Name):
        return False
    function = file.function_of(node)
    while function is not None:
        if node.value in parameters_of(function):
            return True
        function = file.function_of(function)
    return False


def _body(*lines: str) -> str:
    return (
        "import torch\ndef kernel(cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor, n: int) -> None:\n"
        + "".join(f"    {line}\n" for line in lines)
    )


RULE = Rule(
    code="PT121",
    name="strided-write",
    title="A write into a strided view of an argument copies the whole tensor.",
    doc=__doc__,
    check=check,
    valid=examples(
        _body("cache[:n].copy_(x)"),
        _body("cache[3, :n] = x"),
        _body("cache[n] = x"),
        _body("cache[slots] = x", "cache[:, slots] = x"),
        _body("cache.index_copy_(0, slots, x)"),
        _body("mine = torch.empty_like(x)", "mine[:, :n] = x"),
        _body("y = cache[:, :n] + 1"),
        _body("cache[:] = x", "cache[...] = x"),
    ),
    invalid=examples(
        _body("cache[:, :n].copy_(x)"),
        _body("cache[..., 0] = x"),
        _body("cache[:n, 0] += 1"),
        _body("cache[::2] = x"),
        _body("cache[:, 1:n].view(-1).fill_(0)"),
        _body("torch.add(x, x, out=cache[:, :n])"),
        _body("cache.narrow(1, 0, n).zero_()"),
    ),
)
