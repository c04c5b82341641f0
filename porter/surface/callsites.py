"""How interface modules call kernel factories, and the kernels that these return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
    a factory call whose kernel is called several times gives one site a kernel call. Attributes that the function sets on
    the factory (``ops.xxx_tl.pass_configs[KEY] = True``), itself or through a helper of the module that it hands the factory
    to, stand with each of its sites; a function that only sets some has one site with nothing else.
    """
    found: list[CallSite] = []
    imported = frozenset(_imported(module))
    if not imported:
        return ()
    functions = list(_functions(module.body, ""))
    helpers = {name: function for name, function in functions if "." not in name}
    for name, function in functions:
        found.extend(_Function(name, imported, helpers, line_of).sites(function))
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

    def __init__(
        self,
        name: str,
        imported: frozenset[str],
        helpers: Mapping[str, cst.FunctionDef],
        line_of: Callable[[cst.CSTNode], int],
    ) -> None:
        self.name = name
        self.helpers = helpers
        self.line_of = line_of
        self.factories: dict[str, str] = {bound: bound for bound in imported if bound != DISPATCHER}
        self.kernels: dict[str, cst.Call] = {}
        self.calls: list[cst.Call] = []
        self.called: dict[cst.Call, list[tuple[Argument, ...]]] = {}
        self.set: dict[str, list[Argument]] = {}
        self.set_at: dict[str, cst.CSTNode] = {}

    def sites(self, function: cst.FunctionDef) -> Iterator[CallSite]:
        function.body.visit(self)
        for call in self.calls:
            factory = self.factory(call.func)
            assert factory is not None
            attributes = tuple(self.set.get(factory, ()))
            kernel_calls: Sequence[tuple[Argument, ...] | None] = self.called.get(call) or (None,)
            for kernel_arguments in kernel_calls:
                yield CallSite(factory, self.name, self.line_of(call), _arguments(call), kernel_arguments, attributes)
        called = {self.factory(call.func) for call in self.calls}
        for factory, attributes_alone in self.set.items():
            if factory not in called:
                yield CallSite(
                    factory, self.name, self.line_of(self.set_at[factory]), attributes=tuple(attributes_alone)
                )

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
            elif (found := _setting(target.target, self.factory)) is not None:
                self.sets(found[0], Argument(text_of(node.value), found[1]), node)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if isinstance(node.target, cst.Name) and node.value is not None:
            self.bind(node.target.value, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        if isinstance(node.target, cst.Name):
            self.bind(node.target.value, node.value)

    def sets(self, factory: str, attribute: Argument, node: cst.CSTNode) -> None:
        self.set.setdefault(factory, []).append(attribute)
        self.set_at.setdefault(factory, node)

    def handed(self, node: cst.Call) -> None:
        """A factory handed to one of the module's own functions, which may set attributes on it."""
        helper = self.helpers.get(dotted(node.func) or "")
        for index, argument in enumerate(node.args):
            factory = self.factory(argument.value)
            if helper is None or factory is None or argument.star:
                continue
            params = [param.name.value for param in (*helper.params.posonly_params, *helper.params.params)]
            name = (
                argument.keyword.value
                if argument.keyword is not None
                else params[index] if index < len(params) else None
            )
            for attribute in _Settings.of(helper, name) if name is not None else ():
                self.sets(factory, attribute, node)

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
        self.handed(node)
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
    return tuple(
        Argument(arg.star + text_of(arg.value), arg.keyword.value if arg.keyword is not None else None)
        for arg in call.args
    )


def _setting(target: cst.BaseExpression, factory: Callable[[cst.BaseExpression], str | None]) -> tuple[str, str] | None:
    """(factory, what of it) for ``factory.pass_configs[KEY]`` and ``factory.flag`` as targets of an assignment."""
    path = ""
    while True:
        if isinstance(target, cst.Subscript):
            path = f"[{', '.join(text_of(element) for element in target.slice)}]{path}"
            target = target.value
        elif isinstance(target, cst.Attribute):
            path = f".{target.attr.value}{path}"
            target = target.value
        else:
            return None
        found = factory(target)
        if found is not None:
            return found, path.removeprefix(".")


class _Settings(cst.CSTVisitor):
    """What a function sets on one of its parameters."""

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter
        self.found: list[Argument] = []

    @classmethod
    def of(cls, function: cst.FunctionDef, parameter: str) -> list[Argument]:
        settings = cls(parameter)
        function.body.visit(settings)
        return settings.found

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            found = _setting(
                target.target,
                lambda value: value.value if isinstance(value, cst.Name) and value.value == self.parameter else None,
            )
            if found is not None:
                self.found.append(Argument(text_of(node.value), found[1]))
