"""Canonical source text of libcst expressions.

One line, single spaces, double-quoted strings, ASCII only, numbers by value, parentheses only where precedence asks for
them: two spellings of one expression give one text, whatever Python runs porter.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence

import libcst as cst

# Binding strength, weakest first; an operand weaker than its place is put in parentheses.
_WALRUS, _LAMBDA, _IF, _OR, _AND, _NOT, _COMPARE, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT = range(13)
_UNARY, _POWER, _AWAIT, _ATOM = range(13, 17)

_BINARY: dict[type[cst.BaseBinaryOp], tuple[str, int]] = {
    cst.Add: ("+", _SUM),
    cst.Subtract: ("-", _SUM),
    cst.Multiply: ("*", _PRODUCT),
    cst.Divide: ("/", _PRODUCT),
    cst.FloorDivide: ("//", _PRODUCT),
    cst.Modulo: ("%", _PRODUCT),
    cst.MatrixMultiply: ("@", _PRODUCT),
    cst.Power: ("**", _POWER),
    cst.BitOr: ("|", _BIT_OR),
    cst.BitXor: ("^", _BIT_XOR),
    cst.BitAnd: ("&", _BIT_AND),
    cst.LeftShift: ("<<", _SHIFT),
    cst.RightShift: (">>", _SHIFT),
}
_COMPARISON: dict[type[cst.BaseCompOp], str] = {
    cst.LessThan: "<",
    cst.GreaterThan: ">",
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThanEqual: "<=",
    cst.GreaterThanEqual: ">=",
    cst.In: "in",
    cst.NotIn: "not in",
    cst.Is: "is",
    cst.IsNot: "is not",
}
_AUGMENTED: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.MatrixMultiplyAssign: "@",
    cst.PowerAssign: "**",
    cst.BitOrAssign: "|",
    cst.BitXorAssign: "^",
    cst.BitAndAssign: "&",
    cst.LeftShiftAssign: "<<",
    cst.RightShiftAssign: ">>",
}
_UNARIES: dict[type[cst.BaseUnaryOp], tuple[str, int]] = {
    cst.Minus: ("-", _UNARY),
    cst.Plus: ("+", _UNARY),
    cst.BitInvert: ("~", _UNARY),
    cst.Not: ("not ", _NOT),
}
_EMPTY = cst.Module([])
_EXPONENT = re.compile(r"e([+-]?)0*(\d)")


def text_of(node: cst.CSTNode) -> str:
    """Canonical one-line text of an expression (or of one element of a call, tuple or subscript)."""
    return _text(node)[0]


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` of a name or a chain of attributes on a name, None for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def literal(token: str) -> object:
    """Value of a string or number token, without the warnings that a newer Python gives for old escapes."""
    if token.isdecimal() and len(token) < 19:
        return int(token)
    quote = token[0]
    if quote in "'\"" and "\\" not in token and "\r" not in token:
        return token[3:-3] if token.startswith(quote * 3) and len(token) >= 6 else token[1:-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(token)


def quoted(value: str | bytes) -> str:
    """Literal of a string in the canonical quotes: double ones unless only those occur in the value."""
    text = ascii(value)
    start = text.index(text[-1])
    body, quote = text[start + 1 : -1], text[-1]
    if quote == "'" and '"' not in body:
        return text[:start] + '"' + body.replace("\\'", "'") + '"'
    return text


def augmented_operator(node: cst.BaseAugOp) -> str:
    """The binary operator behind an augmented assignment: ``+`` for ``+=``."""
    return _AUGMENTED[type(node)]


def grouped(text: str, operator: str) -> str:
    """``text`` as an operand of ``operator``, in parentheses when it is not surely one."""
    return text if re.fullmatch(r"[\w.]+|\[[^\[\]]*\]|\([^()]*\)", text) else f"({text})"


def _wrap(node: cst.CSTNode, least: int) -> str:
    text, strength = _text(node)
    return text if strength >= least else f"({text})"


def _number(token: str) -> str:
    value = literal(token)
    if isinstance(value, int):
        return str(value)
    return _EXPONENT.sub(lambda found: f"e{found[1].replace('+', '')}{found[2]}", repr(value))


def _text(node: cst.CSTNode) -> tuple[str, int]:
    match node:
        case cst.Name():
            return node.value, _ATOM
        case cst.Attribute():
            owner, strength = _text(node.value)
            if strength < _ATOM or isinstance(node.value, cst.Integer):
                owner = f"({owner})"
            return f"{owner}.{node.attr.value}", _ATOM
        case cst.Integer() | cst.Float() | cst.Imaginary():
            return _number(node.value), _ATOM
        case cst.SimpleString():
            value = literal(node.value)
            assert isinstance(value, (str, bytes))
            return quoted(value), _ATOM
        case cst.ConcatenatedString() | cst.FormattedString():
            return _strings(node), _ATOM
        case cst.Ellipsis():
            return "...", _ATOM
        case cst.UnaryOperation():
            sign, strength = _UNARIES[type(node.operator)]
            return sign + _wrap(node.expression, strength), strength
        case cst.BinaryOperation():
            operator, strength = _BINARY[type(node.operator)]
            left, right = (strength + 1, _UNARY) if operator == "**" else (strength, strength + 1)
            return f"{_wrap(node.left, left)} {operator} {_wrap(node.right, right)}", strength
        case cst.BooleanOperation():
            word, strength = ("and", _AND) if isinstance(node.operator, cst.And) else ("or", _OR)
            return f"{_wrap(node.left, strength)} {word} {_wrap(node.right, strength + 1)}", strength
        case cst.Comparison():
            rest = "".join(
                f" {_COMPARISON[type(target.operator)]} {_wrap(target.comparator, _BIT_OR)}"
                for target in node.comparisons
            )
            return _wrap(node.left, _BIT_OR) + rest, _COMPARE
        case cst.Call():
            return f"{_wrap(node.func, _ATOM)}({_arguments(node.args)})", _ATOM
        case cst.Arg():
            value_text = _wrap(node.value, _LAMBDA)
            if node.keyword is not None:
                return f"{node.keyword.value}={value_text}", _LAMBDA
            return node.star + value_text, _LAMBDA
        case cst.Subscript():
            inside = ", ".join(text_of(element) for element in node.slice)
            index = node.slice[0].slice
            if len(node.slice) == 1 and isinstance(node.slice[0].comma, cst.Comma):
                inside += ","
            elif len(node.slice) == 1 and isinstance(index, cst.Index) and isinstance(index.value, cst.Tuple):
                # a[(b, c)] is a[b, c].
                inside = inside[1:-1] if len(index.value.elements) > 1 else inside
            return f"{_wrap(node.value, _ATOM)}[{inside}]", _ATOM
        case cst.SubscriptElement():
            return text_of(node.slice), _WALRUS
        case cst.Index():
            return (node.star or "") + text_of(node.value), _WALRUS
        case cst.Slice():
            bounds = [_wrap(part, _LAMBDA) if part is not None else "" for part in (node.lower, node.upper)]
            text = ":".join(bounds)
            return text + (f":{_wrap(node.step, _LAMBDA)}" if node.step is not None else ""), _WALRUS
        case cst.Tuple():
            inside = _elements(node.elements)
            return f"({inside},)" if len(node.elements) == 1 else f"({inside})", _ATOM
        case cst.List():
            return f"[{_elements(node.elements)}]", _ATOM
        case cst.Set():
            return "{" + _elements(node.elements) + "}", _ATOM
        case cst.Element():
            return _wrap(node.value, _LAMBDA), _LAMBDA
        case cst.StarredElement():
            return f"*{_wrap(node.value, _BIT_OR)}", _LAMBDA
        case cst.Dict():
            return "{" + _elements(node.elements) + "}", _ATOM
        case cst.DictElement():
            return f"{_wrap(node.key, _LAMBDA)}: {_wrap(node.value, _LAMBDA)}", _LAMBDA
        case cst.StarredDictElement():
            return f"**{_wrap(node.value, _BIT_OR)}", _LAMBDA
        case cst.IfExp():
            parts = (_wrap(node.body, _OR), _wrap(node.test, _OR), _wrap(node.orelse, _LAMBDA))
            return f"{parts[0]} if {parts[1]} else {parts[2]}", _IF
        case cst.Lambda():
            head = _parameters(node.params)
            return (
                f"lambda {head}: {_wrap(node.body, _LAMBDA)}" if head else f"lambda: {_wrap(node.body, _LAMBDA)}"
            ), _LAMBDA
        case cst.ListComp():
            return f"[{_comprehension(node)}]", _ATOM
        case cst.SetComp():
            return "{" + _comprehension(node) + "}", _ATOM
        case cst.GeneratorExp():
            return f"({_comprehension(node)})", _ATOM
        case cst.DictComp():
            pair = f"{_wrap(node.key, _LAMBDA)}: {_wrap(node.value, _LAMBDA)}"
            return "{" + pair + _clauses(node.for_in) + "}", _ATOM
        case cst.NamedExpr():
            return f"{text_of(node.target)} := {_wrap(node.value, _LAMBDA)}", _WALRUS
        case cst.Await():
            return f"await {_wrap(node.expression, _ATOM)}", _AWAIT
        case cst.Yield():
            if node.value is None:
                return "(yield)", _ATOM
            if isinstance(node.value, cst.From):
                return f"(yield from {text_of(node.value.item)})", _ATOM
            return f"(yield {text_of(node.value)})", _ATOM
        case _:
            # Syntax that this printer has no rule for (a template string): its own text, spaces evened out.
            return " ".join(_EMPTY.code_for_node(node).split()), _WALRUS


def _elements(elements: Iterable[cst.CSTNode]) -> str:
    return ", ".join(text_of(element) for element in elements)


def _arguments(arguments: Sequence[cst.Arg]) -> str:
    if len(arguments) == 1:
        (only,) = arguments
        if isinstance(only.value, cst.GeneratorExp) and not only.star and only.keyword is None:
            return _comprehension(only.value)
    return _elements(arguments)


def _comprehension(node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> str:
    return _wrap(node.elt, _LAMBDA) + _clauses(node.for_in)


def _clauses(clause: cst.CompFor | None) -> str:
    out = ""
    while clause is not None:
        word = " async for" if clause.asynchronous is not None else " for"
        target = text_of(clause.target)
        if isinstance(clause.target, cst.Tuple) and len(clause.target.elements) > 1:
            target = target[1:-1]
        out += f"{word} {target} in {_wrap(clause.iter, _OR)}"
        out += "".join(f" if {_wrap(condition.test, _OR)}" for condition in clause.ifs)
        clause = clause.inner_for_in
    return out


def _parameters(parameters: cst.Parameters) -> str:
    def one(parameter: cst.Param, star: str = "") -> str:
        text = star + parameter.name.value
        return text if parameter.default is None else f"{text}={_wrap(parameter.default, _LAMBDA)}"

    out = [one(parameter) for parameter in parameters.posonly_params]
    if out:
        out.append("/")
    out += [one(parameter) for parameter in parameters.params]
    if isinstance(parameters.star_arg, cst.Param):
        out.append(one(parameters.star_arg, "*"))
    elif parameters.kwonly_params:
        out.append("*")
    out += [one(parameter) for parameter in parameters.kwonly_params]
    if parameters.star_kwarg is not None:
        out.append(one(parameters.star_kwarg, "**"))
    return ", ".join(out)


def string_parts(node: cst.BaseString) -> list[cst.BaseString]:
    """The string tokens of an implicitly joined string, in order."""
    if isinstance(node, cst.ConcatenatedString):
        return [*string_parts(node.left), *string_parts(node.right)]
    return [node]


def string_value(node: cst.CSTNode | None) -> str | None:
    """Value of a plain text literal, joined tokens included; None for bytes, f-strings and anything else."""
    if isinstance(node, cst.SimpleString):
        value = literal(node.value)
        return value if isinstance(value, str) else None
    if isinstance(node, cst.ConcatenatedString):
        values = [string_value(part) for part in string_parts(node)]
        return None if None in values else "".join(value for value in values if value is not None)
    return None


def _strings(node: cst.BaseString) -> str:
    parts = string_parts(node)
    if all(isinstance(part, cst.SimpleString) for part in parts):
        values = [literal(part.value) for part in parts if isinstance(part, cst.SimpleString)]
        if isinstance(values[0], bytes):
            return quoted(b"".join(value for value in values if isinstance(value, bytes)))
        return quoted("".join(value for value in values if isinstance(value, str)))
    pieces: list[str] = []
    for part in parts:
        if isinstance(part, cst.SimpleString):
            value = literal(part.value)
            assert isinstance(value, str)
            pieces.append(ascii(value)[1:-1].replace("{", "{{").replace("}", "}}"))
        elif isinstance(part, cst.FormattedString):
            pieces += [_formatted(piece, raw="r" in part.start.lower()) for piece in part.parts]
        else:
            return " ".join(_EMPTY.code_for_node(node).split())
    body = "".join(pieces)
    for quote in ('"', "'", '"""', "'''"):
        if quote not in body:
            return f"f{quote}{body}{quote}"
    return " ".join(_EMPTY.code_for_node(node).split())


def _formatted(piece: cst.BaseFormattedStringContent, *, raw: bool) -> str:
    if isinstance(piece, cst.FormattedStringText):
        text = piece.value.replace("\\", "\\\\") if raw else piece.value
        return "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in text)
    assert isinstance(piece, cst.FormattedStringExpression)
    inside = text_of(piece.expression)
    if inside.startswith("{"):
        inside = " " + inside
    if piece.equal is not None:
        # The text of the expression is part of the value here: keep it as written.
        inside = _EMPTY.code_for_node(piece.expression) + "="
    if piece.conversion is not None:
        inside += f"!{piece.conversion}"
    if piece.format_spec is not None:
        inside += ":" + "".join(_formatted(part, raw=raw) for part in piece.format_spec)
    return "{" + inside + "}"
