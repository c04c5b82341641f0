"""PT107: an output argument is written, not rebound.

A kernel gives its result by writing the tensors that the caller passed: ``out.copy_(y)``, ``out[i] = y``. ``out = y`` only
gives the name a new meaning inside the kernel; the caller's tensor keeps its old values. Which arguments are written comes
from upstream's contract. Rebinding a name to a view of itself (``out = out.view(-1, n)``) keeps the storage and is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from porter.rules.base import Example, Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile, children, parameters_of

_VIEWS = frozenset({
    "view", "view_as", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "t", "permute", "movedim", "swapaxes",
    "narrow", "select", "diagonal", "unfold", "as_strided", "detach",
})  # fmt: skip


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Rebindings of written arguments in the kernels of each factory."""
    for factory in file.module.body:
        if not isinstance(factory, cst.FunctionDef):
            continue
        written = context.written.get(factory.name.value, frozenset())
        if not written:
            continue
        for node in file.of(cst.FunctionDef):
            if file.function_of(node) is factory:
                names = written.intersection(parameters_of(node))
                yield from _in_body(node, names, factory.name.value, file)


def _in_body(function: cst.FunctionDef, names: frozenset[str], factory: str, file: SourceFile) -> Iterator[Problem]:
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        node = stack.pop(0)
        if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            if isinstance(node, cst.FunctionDef):
                inner = names.difference(parameters_of(node))
                if any(isinstance(one, cst.Nonlocal) for one in _statements(node)):
                    yield from _in_body(node, inner, factory, file)
            continue
        for target, value in _bindings(node):
            for name in _names(target):
                if name in names and not (value is not None and _is_view_of(value, name)):
                    yield Problem(
                        f"`{name}` is an output of {factory} and is rebound, not written",
                        node,
                        f"{name}.copy_(...) or {name}[...] = ...",
                        f"{name} = ...",
                        f"write into {name}: {name}.copy_(value)",
                    )
        stack[:0] = list(children(node))


def _statements(function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    for line in function.body.body:
        if isinstance(line, cst.SimpleStatementLine):
            yield from line.body


def _bindings(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    if isinstance(node, cst.Assign):
        for target in node.targets:
            yield target.target, node.value
    elif (isinstance(node, cst.AnnAssign) and node.value is not None) or isinstance(node, cst.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, (cst.For, cst.CompFor)) and isinstance(node, cst.For):
        yield node.target, None
    elif isinstance(node, cst.AsName):
        yield node.name, None
    elif isinstance(node, cst.Del):
        yield node.target, None


def _names(target: cst.CSTNode) -> Iterator[str]:
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value)


def _is_view_of(value: cst.BaseExpression, name: str) -> bool:
    """Is a value the name itself, seen through operations that never copy?"""
    while True:
        if isinstance(value, cst.Name):
            return value.value == name
        if isinstance(value, cst.Attribute) and value.attr.value in ("T", "mT", "data"):
            value = value.value
        elif isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _VIEWS:
            value = value.func.value
        elif isinstance(value, cst.Subscript) and all(
            isinstance(one.slice, cst.Slice) or _is_static_index(one.slice) for one in value.slice
        ):
            value = value.value
        else:
            return False


def _is_static_index(element: cst.CSTNode) -> bool:
    if not isinstance(element, cst.Index):
        return False
    node = element.value
    return isinstance(node, (cst.Integer, cst.Ellipsis)) or (isinstance(node, cst.Name) and node.value == "None")


_WRITTEN = RuleContext(written={"norm_tl": frozenset({"out", "scale"})})


def _kernel(*lines: str, arguments: str = "x, out, scale") -> Example:
    body = "".join(f"        {line}\n" for line in lines)
    source = f"def norm_tl(n):\n    def norm({arguments}):\n{body}    return norm\n"
    return Example(source, context=_WRITTEN)


RULE = Rule(
    code="PT107",
    name="rebound-output",
    title="An output argument is rebound instead of written.",
    doc=__doc__,
    check=check,
    valid=examples(
        _kernel("out.copy_(x)", "scale[0] = 1.0"),
        _kernel("out = out.view(-1, n)", "out.copy_(x)"),
        _kernel("out = out.unsqueeze(0)[:, 1:].T", "out.copy_(x)"),
        _kernel("out += x"),
        _kernel("x = x + 1", "out.copy_(x)"),
        _kernel("def helper(out):", "    out = out + 1", "    return out", "out.copy_(helper(x))"),
        "def norm_tl(n):\n    def norm(x, out):\n        out = x\n    return norm\n",
        Example("def other_tl(n):\n    def other(x, out):\n        out = x\n    return other\n", context=_WRITTEN),
    ),
    invalid=examples(
        _kernel("out = x * 2"),
        _kernel("out, rest = x.split(2)"),
        _kernel("scale: object = x.amax()"),
        _kernel("if n:", "    out = x"),
        _kernel("for out in x:", "    pass"),
        _kernel("out = out.reshape(-1)"),
        _kernel("out = out.contiguous()"),
        _kernel("y = (out := x)"),
        _kernel("out = out[x]"),
    ),
)
