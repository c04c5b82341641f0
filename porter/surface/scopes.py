"""Which outside names a piece of code uses, by Python's scoping rules, straight from libcst nodes.

libcst's scope provider answers more and costs six times a parse; this walk looks at what it needs once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import libcst as cst

from porter.surface.text import dotted


@dataclass(frozen=True)
class Uses:
    """Names that code takes from outside itself.

    ``names``: dotted names loaded and not bound inside, sorted; an attribute of a method's own first parameter is
    written ``self.<attribute>`` when ``receiver`` named that parameter.
    ``imports``: (local name, dotted target) of imports made inside; such names count as taken from outside.
    """

    names: tuple[str, ...]
    imports: tuple[tuple[str, str], ...]


def uses(nodes: Iterable[cst.CSTNode | _Signature | None], *, receiver: str | None = None) -> Uses:
    """What ``nodes`` use. ``receiver``: name of the first parameter of the method that they are the parts of."""
    scope = _Scope()
    for node in nodes:
        if node is not None:
            _visit(node, scope)
    names = scope.free()
    if receiver is not None:
        inner = scope.inner_loads
        names |= {"self." + name.split(".")[1] for name in inner if name.startswith(receiver + ".")}
    return Uses(tuple(sorted(names)), tuple(sorted(set(scope.imports))))


def function_uses(function: cst.FunctionDef, *, receiver: str | None = None) -> Uses:
    """What a function's body, defaults and decorators use. Annotations of its own signature are left out."""
    return uses([*function.decorators, _Signature(function)], receiver=receiver)


def import_target(node: cst.ImportFrom) -> str:
    """The module part of ``from ... import``: leading dots and dotted path as written."""
    return "." * len(node.relative) + ((dotted(node.module) or "") if node.module is not None else "")


@dataclass(frozen=True)
class Imported:
    """One name that an import statement binds: ``name`` is "" for ``import module``, "*" for a star import.

    ``import a.b as c`` is given as ("a", "b", "c"), which means the same, so that ("a.b", "", "a") can only be
    ``import a.b``. ``renamed``: written with ``as``.
    """

    module: str
    name: str
    bound: str
    renamed: bool = False


def imported_names(node: cst.Import | cst.ImportFrom) -> list[Imported]:
    """What an import statement binds, in order."""
    out: list[Imported] = []
    if isinstance(node, cst.ImportFrom):
        module = import_target(node)
        if isinstance(node.names, cst.ImportStar):
            return [Imported(module, "*", "")]
        for alias in node.names:
            name = dotted(alias.name) or ""
            out.append(Imported(module, name, _bound(alias) or name, alias.asname is not None))
        return out
    for alias in node.names:
        module = dotted(alias.name) or ""
        bound = _bound(alias)
        if bound is None:
            out.append(Imported(module, "", module.partition(".")[0]))
        elif "." in module:
            package, _, name = module.rpartition(".")
            out.append(Imported(package, name, bound, renamed=True))
        else:
            out.append(Imported(module, "", bound, renamed=True))
    return out


def _bound(alias: cst.ImportAlias) -> str | None:
    if alias.asname is None:
        return None
    return dotted(alias.asname.name)


def target_names(target: cst.CSTNode) -> list[str]:
    """Names that an assignment target binds, in order."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for element in target.elements for name in target_names(element.value)]
    if isinstance(target, cst.StarredElement):
        return target_names(target.value)
    return []


class _Signature:
    """A function to be walked as the outermost scope: its name is not bound, its annotations are not read."""

    def __init__(self, function: cst.FunctionDef) -> None:
        self.function = function


class _Scope:
    """Names of one scope. A class's names are not seen by the functions in it (``hidden``); a walrus in a comprehension
    (``fleeting``) binds outside it."""

    __slots__ = ("bound", "declared", "fleeting", "hidden", "imports", "inner_loads", "loads", "parent")

    def __init__(self, parent: _Scope | None = None, *, hidden: bool = False, fleeting: bool = False) -> None:
        self.parent = parent
        self.hidden = hidden
        self.fleeting = fleeting
        self.bound: set[str] = set()
        self.declared: set[str] = set()
        self.loads: set[str] = set()
        self.inner_loads: set[str] = set()
        self.imports: list[tuple[str, str]] = parent.imports if parent is not None else []

    def free(self) -> set[str]:
        bound = self.bound - self.declared
        return {name for name in self.loads if name.partition(".")[0] not in bound}

    def close(self) -> None:
        """Hand what this scope does not bind to the scope around it."""
        assert self.parent is not None
        outer = self.parent
        names = self.free()
        # A class body's own names are out of reach of the functions in it.
        while outer.hidden and not self.hidden and outer.parent is not None:
            outer = outer.parent
        outer.loads |= names


Visit = Callable[..., None]

# Fields that never hold a load: layout, and names that are labels.
_SKIP = frozenset({
    "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "comma", "semicolon", "colon", "newline", "dot",
    "leading_lines", "lines_after_decorators", "header", "footer", "indent", "equal", "star", "posonly_ind",
    "first_colon", "second_colon", "separator", "trailing_comma", "operator", "asynchronous", "encoding",
    "default_indent", "default_newline", "has_trailing_newline",
})  # fmt: skip


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.name not in _SKIP and not field.name.startswith(("whitespace", "trailing_whitespace"))
    )


def _visit(node: object, scope: _Scope) -> None:
    special = _SPECIAL.get(type(node))
    if special is not None:
        special(node, scope)
        return
    for name in _fields(type(node)):  # type: ignore[arg-type]
        value = getattr(node, name)
        if isinstance(value, (tuple, list)):
            for item in value:
                _visit(item, scope)
        elif isinstance(value, cst.CSTNode):
            _visit(value, scope)


def _nothing(_node: object, _scope: _Scope) -> None:
    return


def _name(node: cst.Name, scope: _Scope) -> None:
    if node.value not in ("True", "False", "None"):
        scope.loads.add(node.value)


def _attribute(node: cst.Attribute, scope: _Scope) -> None:
    path = dotted(node)
    if path is None:
        _visit(node.value, scope)
    else:
        scope.loads.add(path)


def _arg(node: cst.Arg, scope: _Scope) -> None:
    _visit(node.value, scope)


def _bind(target: cst.CSTNode, scope: _Scope) -> None:
    if isinstance(target, cst.Name):
        scope.bound.add(target.value)
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            _bind(element.value, scope)
    elif isinstance(target, cst.StarredElement):
        _bind(target.value, scope)
    elif isinstance(target, cst.Attribute):
        _attribute(target, scope)
    else:
        _visit(target, scope)


def _assign_target(node: cst.AssignTarget, scope: _Scope) -> None:
    _bind(node.target, scope)


def _ann_assign(node: cst.AnnAssign, scope: _Scope) -> None:
    _bind(node.target, scope)
    _visit(node.annotation, scope)
    if node.value is not None:
        _visit(node.value, scope)


def _aug_assign(node: cst.AugAssign, scope: _Scope) -> None:
    _bind(node.target, scope)
    _visit(node.target, scope)
    _visit(node.value, scope)


def _named(node: cst.NamedExpr, scope: _Scope) -> None:
    _visit(node.value, scope)
    while scope.fleeting and scope.parent is not None:
        scope = scope.parent
    _bind(node.target, scope)


def _for(node: cst.For, scope: _Scope) -> None:
    _bind(node.target, scope)
    _visit(node.iter, scope)
    _visit(node.body, scope)
    if node.orelse is not None:
        _visit(node.orelse, scope)


def _as_name(node: cst.AsName, scope: _Scope) -> None:
    _bind(node.name, scope)


def _comprehension(node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, scope: _Scope) -> None:
    inner = _Scope(scope, fleeting=True)
    clause: cst.CompFor | None = node.for_in
    assert clause is not None
    _visit(clause.iter, scope)
    first = True
    while clause is not None:
        _bind(clause.target, inner)
        if not first:
            _visit(clause.iter, inner)
        for condition in clause.ifs:
            _visit(condition.test, inner)
        clause, first = clause.inner_for_in, False
    if isinstance(node, cst.DictComp):
        _visit(node.key, inner)
        _visit(node.value, inner)
    else:
        _visit(node.elt, inner)
    scope.loads |= inner.free()


def _parameters(node: cst.Parameters, scope: _Scope) -> list[cst.Param]:
    every = [*node.posonly_params, *node.params, *node.kwonly_params]
    if isinstance(node.star_arg, cst.Param):
        every.append(node.star_arg)
    if node.star_kwarg is not None:
        every.append(node.star_kwarg)
    for parameter in every:
        if parameter.default is not None:
            _visit(parameter.default, scope)
    return every


def _lambda(node: cst.Lambda, scope: _Scope) -> None:
    parameters = _parameters(node.params, scope)
    inner = _Scope(scope)
    inner.bound.update(parameter.name.value for parameter in parameters)
    _visit(node.body, inner)
    inner.close()


def _function(node: cst.FunctionDef, scope: _Scope) -> None:
    scope.bound.add(node.name.value)
    for decorator in node.decorators:
        _visit(decorator.decorator, scope)
    for parameter in _parameters(node.params, scope):
        if parameter.annotation is not None:
            _visit(parameter.annotation, scope)
    if node.returns is not None:
        _visit(node.returns, scope)
    _body(node, scope)


def _signature(wrapped: _Signature, scope: _Scope) -> None:
    _parameters(wrapped.function.params, scope)
    _body(wrapped.function, scope)


def _body(node: cst.FunctionDef, scope: _Scope) -> None:
    inner = _Scope(scope)
    parameters = [*node.params.posonly_params, *node.params.params, *node.params.kwonly_params]
    inner.bound.update(parameter.name.value for parameter in parameters)
    for extra in (node.params.star_arg, node.params.star_kwarg):
        if isinstance(extra, cst.Param):
            inner.bound.add(extra.name.value)
    if node.type_parameters is not None:
        _visit(node.type_parameters, inner)
    _visit(node.body, inner)
    scope.inner_loads |= inner.loads
    inner.close()


def _class(node: cst.ClassDef, scope: _Scope) -> None:
    scope.bound.add(node.name.value)
    for decorator in node.decorators:
        _visit(decorator.decorator, scope)
    for argument in (*node.bases, *node.keywords):
        _visit(argument.value, scope)
    inner = _Scope(scope, hidden=True)
    if node.type_parameters is not None:
        _visit(node.type_parameters, inner)
    _visit(node.body, inner)
    inner.close()


def _import(node: cst.Import | cst.ImportFrom, scope: _Scope) -> None:
    for one in imported_names(node):
        if one.name == "*":
            continue
        if one.name:
            target = one.module + ("" if one.module.endswith(".") else ".") + one.name
        else:
            target = one.bound if not one.renamed else one.module
        scope.imports.append((one.bound, target))


def _declaration(node: cst.Global | cst.Nonlocal, scope: _Scope) -> None:
    scope.declared.update(item.name.value for item in node.names)


def _match_as(node: cst.MatchAs, scope: _Scope) -> None:
    if node.pattern is not None:
        _visit(node.pattern, scope)
    if node.name is not None:
        scope.bound.add(node.name.value)


def _match_star(node: cst.MatchStar, scope: _Scope) -> None:
    if node.name is not None:
        scope.bound.add(node.name.value)


def _match_mapping(node: cst.MatchMapping, scope: _Scope) -> None:
    for element in node.elements:
        _visit(element, scope)
    if node.rest is not None:
        scope.bound.add(node.rest.value)


def _match_keyword(node: cst.MatchKeywordElement, scope: _Scope) -> None:
    _visit(node.pattern, scope)


def _type_alias(node: cst.TypeAlias, scope: _Scope) -> None:
    scope.bound.add(node.name.value)
    inner = _Scope(scope)
    if node.type_parameters is not None:
        _visit(node.type_parameters, inner)
    _visit(node.value, inner)
    inner.close()


def _type_variable(node: cst.TypeVar | cst.TypeVarTuple | cst.ParamSpec, scope: _Scope) -> None:
    scope.bound.add(node.name.value)
    if isinstance(node, cst.TypeVar) and node.bound is not None:
        _visit(node.bound, scope)


_SPECIAL: dict[type, Visit] = {
    _Signature: _signature,
    cst.Name: _name,
    cst.Attribute: _attribute,
    cst.Arg: _arg,
    cst.AssignTarget: _assign_target,
    cst.AnnAssign: _ann_assign,
    cst.AugAssign: _aug_assign,
    cst.NamedExpr: _named,
    cst.For: _for,
    cst.AsName: _as_name,
    cst.ListComp: _comprehension,
    cst.SetComp: _comprehension,
    cst.GeneratorExp: _comprehension,
    cst.DictComp: _comprehension,
    cst.Lambda: _lambda,
    cst.FunctionDef: _function,
    cst.ClassDef: _class,
    cst.Import: _import,
    cst.ImportFrom: _import,
    cst.Global: _declaration,
    cst.Nonlocal: _declaration,
    cst.MatchAs: _match_as,
    cst.MatchStar: _match_star,
    cst.MatchMapping: _match_mapping,
    cst.MatchKeywordElement: _match_keyword,
    cst.TypeAlias: _type_alias,
    cst.TypeVar: _type_variable,
    cst.TypeVarTuple: _type_variable,
    cst.ParamSpec: _type_variable,
    cst.Integer: _nothing,
    cst.Float: _nothing,
    cst.Imaginary: _nothing,
    cst.SimpleString: _nothing,
    cst.Ellipsis: _nothing,
    cst.Pass: _nothing,
    cst.Break: _nothing,
    cst.Continue: _nothing,
    cst.FormattedStringText: _nothing,
    cst.EmptyLine: _nothing,
    cst.TrailingWhitespace: _nothing,
    cst.SimpleWhitespace: _nothing,
    cst.ParenthesizedWhitespace: _nothing,
    cst.Newline: _nothing,
    cst.Comma: _nothing,
    cst.MaybeSentinel: _nothing,
}
