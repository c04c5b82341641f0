"""Static evaluation of the expressions that packages build ``__all__`` from. Nothing is executed.

Understood: string literals, f-strings of strings, lists, tuples, sets, dictionaries (their keys), starred elements, ``+ | - &``,
``list tuple set frozenset sorted reversed dict.fromkeys`` and ``.keys()`` of these, names and attributes that the caller
can follow, conditional expressions, and comprehensions whose conditions compare the element. What is not understood is
named in the answer, and the rest still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import libcst as cst

from porter.surface.text import dotted, string_value, text_of


@dataclass(frozen=True)
class NameList:
    """Strings in order, and the texts of the parts that could not be evaluated."""

    names: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True when nothing was left out."""
        return not self.unknown


# What a dotted name (or ``dir()``, ``globals()``) stands for: one string, several, or None when it is not known.
Follow = Callable[[str], "str | NameList | None"]

_TRANSPARENT = frozenset(
    {"list", "tuple", "set", "frozenset", "reversed", "dict.fromkeys", "OrderedDict.fromkeys", "iter"}
)
_NAMESPACES = frozenset({"dir()", "globals()", "vars()", "locals()"})


def evaluate_names(text: str, follow: Follow) -> str | NameList | None:
    """Value of an expression over strings; None when nothing of it is known."""
    return _Evaluation(follow, {}).value(cst.parse_expression(text))


class _Evaluation:
    def __init__(self, follow: Follow, variables: Mapping[str, str]) -> None:
        self.follow = follow
        self.variables = variables

    def names(self, node: cst.BaseExpression) -> NameList:
        """Value as a list, with the text of ``node`` as the unknown part when it has none."""
        value = self.value(node)
        if isinstance(value, NameList):
            return value
        return NameList((), (text_of(node),))

    def value(self, node: cst.BaseExpression) -> str | NameList | None:
        match node:
            case cst.SimpleString() | cst.ConcatenatedString():
                return string_value(node)
            case cst.FormattedString():
                return self._formatted(node)
            case cst.List() | cst.Tuple() | cst.Set():
                return self._elements(
                    [(element.value, isinstance(element, cst.StarredElement)) for element in node.elements]
                )
            case cst.Dict():
                return self._elements(
                    [(e.key, False) if isinstance(e, cst.DictElement) else (e.value, True) for e in node.elements]
                )
            case cst.Name() | cst.Attribute():
                path = dotted(node)
                if path is None:
                    return None
                return self.variables.get(path) or self.follow(path)
            case cst.BinaryOperation():
                return self._operation(node)
            case cst.Call():
                return self._call(node)
            case cst.IfExp():
                both = [self.names(node.body), self.names(node.orelse)]
                names = tuple(dict.fromkeys(name for part in both for name in part.names))
                return NameList(names, (f"condition {text_of(node.test)}", *both[0].unknown, *both[1].unknown))
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return self._comprehension(node)
            case _:
                return None

    def _elements(self, elements: list[tuple[cst.BaseExpression, bool]]) -> NameList:
        names: list[str] = []
        unknown: list[str] = []
        for element, starred in elements:
            if starred:
                inner = self.names(element)
                names += inner.names
                unknown += inner.unknown
                continue
            value = self.value(element)
            if isinstance(value, str):
                names.append(value)
            else:
                unknown.append(text_of(element))
        return NameList(tuple(names), tuple(unknown))

    def _formatted(self, node: cst.FormattedString) -> str | None:
        parts: list[str] = []
        for part in node.parts:
            if isinstance(part, cst.FormattedStringText):
                parts.append(part.value)
                continue
            assert isinstance(part, cst.FormattedStringExpression)
            value = self.value(part.expression)
            if not isinstance(value, str) or part.conversion is not None or part.format_spec is not None:
                return None
            parts.append(value)
        return "".join(parts)

    def _operation(self, node: cst.BinaryOperation) -> str | NameList | None:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, str) and isinstance(right, str):
            return left + right if isinstance(node.operator, cst.Add) else None
        first = left if isinstance(left, NameList) else NameList((), (text_of(node.left),))
        second = right if isinstance(right, NameList) else NameList((), (text_of(node.right),))
        unknown = (*first.unknown, *second.unknown)
        match node.operator:
            case cst.Add():
                return NameList((*first.names, *second.names), unknown)
            case cst.BitOr():
                return NameList(tuple(dict.fromkeys((*first.names, *second.names))), unknown)
            case cst.Subtract():
                return NameList(tuple(name for name in first.names if name not in second.names), unknown)
            case cst.BitAnd():
                return NameList(tuple(name for name in first.names if name in second.names), unknown)
            case _:
                return None

    def _call(self, node: cst.Call) -> str | NameList | None:
        text = text_of(node)
        if text in _NAMESPACES:
            return self.follow(text)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("keys", "copy") and not node.args:
            value = self.value(node.func.value)
            return value if isinstance(value, NameList) else None
        name = dotted(node.func)
        if name in _TRANSPARENT | {"sorted"} and len(node.args) <= (2 if name == "dict.fromkeys" else 1):
            if not node.args:
                return NameList(())
            inner = self.names(node.args[0].value)
            if name == "sorted":
                return NameList(tuple(sorted(inner.names)), inner.unknown)
            if name == "dict.fromkeys" or name in ("set", "frozenset"):
                return NameList(tuple(dict.fromkeys(inner.names)), inner.unknown)
            return NameList(inner.names[::-1] if name == "reversed" else inner.names, inner.unknown)
        return None

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> NameList | None:
        clause = node.for_in
        if clause.inner_for_in is not None or not isinstance(clause.target, cst.Name):
            return None
        source = self.names(clause.iter)
        names: list[str] = []
        unknown = dict.fromkeys(source.unknown)
        for name in source.names:
            inner = _Evaluation(self.follow, {**self.variables, clause.target.value: name})
            verdicts = [inner.holds(condition.test) for condition in clause.ifs]
            for condition, verdict in zip(clause.ifs, verdicts, strict=True):
                if verdict is None:
                    unknown[f"condition {text_of(condition.test)}"] = None
            value = inner.value(node.elt)
            if not isinstance(value, str):
                unknown[text_of(node.elt)] = None
            elif False not in verdicts:
                names.append(value)
        return NameList(tuple(names), tuple(unknown))

    def holds(self, node: cst.BaseExpression) -> bool | None:
        """Truth of a condition on the strings at hand, None when it cannot be told."""
        match node:
            case cst.UnaryOperation(operator=cst.Not()):
                inner = self.holds(node.expression)
                return None if inner is None else not inner
            case cst.BooleanOperation():
                sides = [self.holds(node.left), self.holds(node.right)]
                decisive = isinstance(node.operator, cst.Or)
                if decisive in sides:
                    return decisive
                return None if None in sides else not decisive
            case cst.Comparison(comparisons=[cst.ComparisonTarget() as target]):
                return self._compare(node.left, target)
            case cst.Call(func=cst.Attribute() as method, args=[argument]):
                value, part = self.value(method.value), self.value(argument.value)
                if not isinstance(value, str):
                    return None
                parts = part.names if isinstance(part, NameList) and part.complete else (part,)
                if not all(isinstance(one, str) for one in parts):
                    return None
                prefixes = tuple(one for one in parts if isinstance(one, str))
                return {"startswith": value.startswith, "endswith": value.endswith}.get(
                    method.attr.value, lambda _: None
                )(prefixes)
            case _:
                return None

    def _compare(self, left: cst.BaseExpression, target: cst.ComparisonTarget) -> bool | None:
        value, other = self.value(left), self.value(target.comparator)
        match target.operator:
            case cst.In() | cst.NotIn():
                if not isinstance(value, str) or not isinstance(other, NameList):
                    return None
                if value not in other.names and not other.complete:
                    return None
                return (value in other.names) is isinstance(target.operator, cst.In)
            case cst.Equal() | cst.NotEqual():
                if not isinstance(value, str) or not isinstance(other, str):
                    return None
                return (value == other) is isinstance(target.operator, cst.Equal)
            case _:
                return None
