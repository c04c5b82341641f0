"""Canonical source text of libcst expressions.

One line, single spaces, double quotes where they fit, only the parentheses that the meaning needs: two expressions that
differ in layout alone have one text.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import libcst as cst

_TUPLE, _TEST, _OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _TERM, _FACTOR, _POWER, _AWAIT, _ATOM = range(16)

_BINARY: dict[type, tuple[str, int]] = {
    cst.Add: ("+", _SUM),
    cst.Subtract: ("-", _SUM),
    cst.Multiply: ("*", _TERM),
    cst.Divide: ("/", _TERM),
    cst.FloorDivide: ("//", _TERM),
    cst.Modulo: ("%", _TERM),
    cst.MatrixMultiply: ("@", _TERM),
    cst.Power: ("**", _POWER),
    cst.LeftShift: ("<<", _SHIFT),
    cst.RightShift: (">>", _SHIFT),
    cst.BitOr: ("|", _BIT_OR),
    cst.BitXor: ("^", _BIT_XOR),
    cst.BitAnd: ("&", _BIT_AND),
}
_COMPARISON: dict[type, str] = {
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.In: "in",
    cst.NotIn: "not in",
    cst.Is: "is",
    cst.IsNot: "is not",
}
_UNARY: dict[type, tuple[str, int]] = {
    cst.Minus: ("-", _FACTOR),
    cst.Plus: ("+", _FACTOR),
    cst.BitInvert: ("~", _FACTOR),
    cst.Not: ("not ", _NOT),
}


def text_of(node: cst.CSTNode) -> str:
    """Canonical text of an expression, argument or annotation."""
    return _text(node, _TUPLE)


def negated(condition: str) -> str:
    """Text of the opposite of a condition given as canonical text."""
    return f"not ({condition})" if " " in condition else f"not {condition}"


def conjunction(conditions: Sequence[str]) -> str:
    """Text of conditions that all hold, in order, each once."""
    unique = list(dict.fromkeys(conditions))
    if len(unique) == 1:
        return unique[0]
    return " and ".join(f"({c})" if " or " in c or " if " in c or c.startswith("lambda") else c for c in unique)


def dotted_of(node: cst.CSTNode) -> str | None:
    """``a.b.c`` where the node is a name or a chain of attributes on one, else None."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted_of(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    return None


def quoted(value: str | bytes) -> str:
    """A string literal for a value, double-quoted where that needs no more escapes."""
    text = repr(value)
    start = text.index(text[-1])
    body = text[start + 1 : -1]
    if text[-1] == '"' or '"' in body:
        return text
    return text[:start] + '"' + body.replace("\\'", "'") + '"'


def _text(node: object, level: int) -> str:
    writer = _WRITERS.get(type(node))
    if writer is None:
        return _fallback(node)
    text, own = writer(node)
    return f"({text})" if own < level else text


def _fallback(node: object) -> str:
    assert isinstance(node, cst.CSTNode)
    return " ".join(cst.Module([]).code_for_node(node).split())


def _string(node: cst.SimpleString | cst.ConcatenatedString) -> tuple[str, int]:
    try:
        value = ast.literal_eval(cst.Module([]).code_for_node(node) if node.lpar == () else _fallback(node.with_changes(lpar=(), rpar=())))
    except (ValueError, SyntaxError):
        return _fallback(node), _ATOM
    return quoted(value), _ATOM


def _formatted(node: cst.FormattedString) -> tuple[str, int]:
    return cst.Module([]).code_for_node(node.with_changes(lpar=(), rpar=())).replace("\r", "").replace("\n", "\\n"), _ATOM


def _number(node: cst.Integer | cst.Float | cst.Imaginary) -> tuple[str, int]:
    return repr(ast.literal_eval(node.value)), _ATOM


def _elements(elements: Sequence[cst.BaseElement]) -> list[str]:
    return [f"*{_text(e.value, _BIT_OR)}" if isinstance(e, cst.StarredElement) else _text(e.value, _TEST) for e in elements]


def _tuple(node: cst.Tuple) -> tuple[str, int]:
    parts = _elements(node.elements)
    return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")", _ATOM


def _list(node: cst.List) -> tuple[str, int]:
    return "[" + ", ".join(_elements(node.elements)) + "]", _ATOM


def _set(node: cst.Set) -> tuple[str, int]:
    return "{" + ", ".join(_elements(node.elements)) + "}", _ATOM


def _dict(node: cst.Dict) -> tuple[str, int]:
    parts = [
        f"{_text(e.key, _TEST)}: {_text(e.value, _TEST)}" if isinstance(e, cst.DictElement) else f"**{_text(e.value, _BIT_OR)}"
        for e in node.elements
    ]
    return "{" + ", ".join(parts) + "}", _ATOM


def _argument(node: cst.Arg) -> str:
    if node.keyword is not None:
        return f"{node.keyword.value}={_text(node.value, _TEST)}"
    return node.star + _text(node.value, _TEST)


def _call(node: cst.Call) -> tuple[str, int]:
    return f"{_text(node.func, _ATOM)}({', '.join(_argument(a) for a in node.args)})", _ATOM


def _slice(node: cst.BaseSlice) -> str:
    if isinstance(node, cst.Index):
        return (node.star or "") + _text(node.value, _TEST)
    assert isinstance(node, cst.Slice)
    parts = ["" if part is None else _text(part, _TEST) for part in (node.lower, node.upper)]
    text = ":".join(parts)
    return text if node.step is None else f"{text}:{_text(node.step, _TEST)}"


def _subscript(node: cst.Subscript) -> tuple[str, int]:
    parts = ", ".join(_slice(element.slice) for element in node.slice)
    one = len(node.slice) == 1 and isinstance(node.slice[0].comma, cst.Comma)
    return f"{_text(node.value, _ATOM)}[{parts}{',' if one else ''}]", _ATOM


def _attribute(node: cst.Attribute) -> tuple[str, int]:
    base = _text(node.value, _ATOM)
    if isinstance(node.value, cst.Integer):
        base = f"({base})"
    return f"{base}.{node.attr.value}", _ATOM


def _binary(node: cst.BinaryOperation) -> tuple[str, int]:
    sign, level = _BINARY[type(node.operator)]
    if level == _POWER:
        return f"{_text(node.left, _AWAIT)} ** {_text(node.right, _FACTOR)}", level
    return f"{_text(node.left, level)} {sign} {_text(node.right, level + 1)}", level


def _boolean(node: cst.BooleanOperation) -> tuple[str, int]:
    sign, level = ("and", _AND) if isinstance(node.operator, cst.And) else ("or", _OR)
    return f"{_text(node.left, level)} {sign} {_text(node.right, level + 1)}", level


def _unary(node: cst.UnaryOperation) -> tuple[str, int]:
    sign, level = _UNARY[type(node.operator)]
    return sign + _text(node.expression, level), level


def _comparison(node: cst.Comparison) -> tuple[str, int]:
    parts = [_text(node.left, _COMPARE + 1)]
    for target in node.comparisons:
        parts += [_COMPARISON[type(target.operator)], _text(target.comparator, _COMPARE + 1)]
    return " ".join(parts), _COMPARE


def _conditional(node: cst.IfExp) -> tuple[str, int]:
    return f"{_text(node.body, _OR)} if {_text(node.test, _OR)} else {_text(node.orelse, _TEST)}", _TEST


def _lambda(node: cst.Lambda) -> tuple[str, int]:
    head = parameters_text(node.params)
    return f"lambda{' ' + head if head else ''}: {_text(node.body, _TEST)}", _TEST


def parameters_text(node: cst.Parameters) -> str:
    """Parameters as a lambda writes them, without annotations."""
    parts: list[str] = []

    def one(param: cst.Param, star: str = "") -> str:
        return star + param.name.value + ("" if param.default is None else f"={_text(param.default, _TEST)}")

    parts += [one(p) for p in node.posonly_params]
    if node.posonly_params:
        parts.append("/")
    parts += [one(p) for p in node.params]
    if isinstance(node.star_arg, cst.Param):
        parts.append(one(node.star_arg, "*"))
    elif node.kwonly_params:
        parts.append("*")
    parts += [one(p) for p in node.kwonly_params]
    if node.star_kwarg is not None:
        parts.append(one(node.star_kwarg, "**"))
    return ", ".join(parts)


def _named(node: cst.NamedExpr) -> tuple[str, int]:
    return f"{_text(node.target, _ATOM)} := {_text(node.value, _TEST)}", _TUPLE


def _await(node: cst.Await) -> tuple[str, int]:
    return f"await {_text(node.expression, _ATOM)}", _AWAIT


def _loops(node: cst.CompFor) -> str:
    text = f"{'async ' if node.asynchronous else ''}for {_text(node.target, _TEST)} in {_text(node.iter, _OR)}"
    text += "".join(f" if {_text(condition.test, _OR)}" for condition in node.ifs)
    return text if node.inner_for_in is None else f"{text} {_loops(node.inner_for_in)}"


def _comprehension(node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> tuple[str, int]:
    opening, closing = {cst.ListComp: "[]", cst.SetComp: "{}", cst.GeneratorExp: "()"}[type(node)]
    return f"{opening}{_text(node.elt, _TEST)} {_loops(node.for_in)}{closing}", _ATOM


def _dict_comprehension(node: cst.DictComp) -> tuple[str, int]:
    return f"{{{_text(node.key, _TEST)}: {_text(node.value, _TEST)} {_loops(node.for_in)}}}", _ATOM


_WRITERS: dict[type, Callable[..., tuple[str, int]]] = {
    cst.Name: lambda node: (node.value, _ATOM),
    cst.Ellipsis: lambda _node: ("...", _ATOM),
    cst.Integer: _number,
    cst.Float: _number,
    cst.Imaginary: _number,
    cst.SimpleString: _string,
    cst.ConcatenatedString: _string,
    cst.FormattedString: _formatted,
    cst.Tuple: _tuple,
    cst.List: _list,
    cst.Set: _set,
    cst.Dict: _dict,
    cst.Call: _call,
    cst.Arg: lambda node: (_argument(node), _ATOM),
    cst.Annotation: lambda node: (_text(node.annotation, _TEST), _ATOM),
    cst.Subscript: _subscript,
    cst.Attribute: _attribute,
    cst.BinaryOperation: _binary,
    cst.BooleanOperation: _boolean,
    cst.UnaryOperation: _unary,
    cst.Comparison: _comparison,
    cst.IfExp: _conditional,
    cst.Lambda: _lambda,
    cst.NamedExpr: _named,
    cst.Await: _await,
    cst.ListComp: _comprehension,
    cst.SetComp: _comprehension,
    cst.GeneratorExp: _comprehension,
    cst.DictComp: _dict_comprehension,
}
