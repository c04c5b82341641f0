"""How interface modules call kernel factories, and the kernels that these return."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from porter.surface.model import Argument, CallSite
from porter.surface.text import dotted, text_of

FACTORY_SUFFIX = "_tl"
# The name under which upstream's interface modules import the dispatcher.
DISPATCHER = "ops"
_PARTIAL = ("functools.partial", "partial")


def call_sites(module: cst.Module, line_of: Callable[[cst.CSTNode], int]) -> tuple[CallSite, ...]:
    """Every factory call of a module, in order of appearance.

    A factory is called as ``ops.xxx_tl(...)``, under a local name bound to ``ops.xxx_tl``, or under an imported name that
    ends in ``_tl``. Its kernel is called at once (``ops.xxx_tl(...)(x)``), through a local name, or bound with ``partial``;
    a factory call whose kernel is called several times gives one site a kernel call.
    """
    found: list[CallSite] = []
    imported = frozenset(_imported(module))
    if not imported:
        return ()
    for name, function in _functions(module.body, ""):
        found.extend(_Function(name, imported, line_of).sites(function))
    return tuple(found)


def _imported(module: cst.Module) -> Iterator[str]:
    for line in module.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                for alias in small.names:
                    bound = alias.evaluated_alias or alias.evaluated_name
                    if bound == DISPATCHER or bound.endswith(FACTORY_SUFFIX):
                        yield bound


def _functions(body: object, prefix: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Functions and methods with their qualified names; nested functions belong to the one around them."""
    for statement in body if isinstance(body, (list, tuple)) else ():
        if isinstance(statement, cst.FunctionDef):
            yield prefix + statement.name.value, statement
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(statement.body.body, f"{prefix}{statement.name.value}.")
        elif isinstance(statement, (cst.If, cst.Try, cst.With)):
            yield from _functions(statement.body.body, prefix)


class _Function(cst.CSTVisitor):
    """One function's factory calls. Names are followed in order of appearance, branches one after the other."""

    def __init__(self, name: str, imported: frozenset[str], line_of: Callable[[cst.CSTNode], int]) -> None:
        self.name = name
        self.line_of = line_of
        self.factories: dict[str, str] = {bound: bound for bound in imported if bound != DISPATCHER}
        self.kernels: dict[str, cst.Call] = {}
        self.calls: list[cst.Call] = []
        self.called: dict[cst.Call, list[tuple[Argument, ...]]] = {}

    def sites(self, function: cst.FunctionDef) -> Iterator[CallSite]:
        function.body.visit(self)
        for call in self.calls:
            factory = self.factory(call.func)
            assert factory is not None
            for kernel_arguments in self.called.get(call) or [None]:
                yield CallSite(factory, self.name, self.line_of(call), _arguments(call), kernel_arguments)

    def factory(self, node: cst.BaseExpression) -> str | None:
        """The factory's name when an expression is one."""
        name = dotted(node)
        if name is None:
            return None
        root, _, last = name.rpartition(".")
        if root and root.rpartition(".")[2] == DISPATCHER and last.endswith(FACTORY_SUFFIX):
            return last
        return self.factories.get(name)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.bind(target.target.value, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if isinstance(node.target, cst.Name) and node.value is not None:
            self.bind(node.target.value, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        if isinstance(node.target, cst.Name):
            self.bind(node.target.value, node.value)

    def bind(self, name: str, value: cst.BaseExpression) -> None:
        factory = self.factory(value)
        if factory is not None:
            self.factories[name] = factory
        elif isinstance(value, cst.Call) and self.factory(value.func) is not None:
            self.kernels[name] = value
        elif isinstance(value, cst.Name) and value.value in self.kernels:
            self.kernels[name] = self.kernels[value.value]

    def visit_Call(self, node: cst.Call) -> None:
        if self.factory(node.func) is not None:
            self.calls.append(node)
        kernel = self.kernel(node.func)
        if kernel is not None:
            self.called.setdefault(kernel, []).append(_arguments(node))
        elif dotted(node.func) in _PARTIAL and node.args and (bound := self.kernel(node.args[0].value)) is not None:
            self.called.setdefault(bound, []).append(_arguments(node)[1:])

    def kernel(self, node: cst.BaseExpression) -> cst.Call | None:
        """The factory call behind an expression that is its kernel."""
        if isinstance(node, cst.Call) and self.factory(node.func) is not None:
            return node
        return self.kernels.get(node.value) if isinstance(node, cst.Name) else None


def _arguments(call: cst.Call) -> tuple[Argument, ...]:
    return tuple(Argument(arg.star + text_of(arg.value), arg.keyword.value if arg.keyword is not None else None) for arg in call.args)
