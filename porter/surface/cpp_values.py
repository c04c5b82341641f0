"""C++ values as Python text: default arguments and module constants.

A value that Python text cannot stand for is ``...`` together with a note that says what was written. A float literal
is given as written (``1e-6f`` is ``1e-06``), although a C++ ``float`` holds its nearest 32-bit value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from porter.surface.cpp_tokens import one_line
from porter.surface.cpp_types import parse_type
from porter.surface.text import quoted

UNKNOWN = "..."
_DTYPES = {
    "kByte": "uint8", "kUInt8": "uint8", "kChar": "int8", "kInt8": "int8", "kShort": "int16", "kInt16": "int16",
    "kInt": "int32", "kInt32": "int32", "kLong": "int64", "kInt64": "int64", "kHalf": "float16", "kFloat16": "float16",
    "kFloat": "float32", "kFloat32": "float32", "kDouble": "float64", "kFloat64": "float64", "kBool": "bool",
    "kBFloat16": "bfloat16", "kUInt16": "uint16", "kUInt32": "uint32", "kUInt64": "uint64",
    "kFloat8_e4m3fn": "float8_e4m3fn", "kFloat8_e5m2": "float8_e5m2", "kFloat8_e4m3fnuz": "float8_e4m3fnuz",
    "kFloat8_e5m2fnuz": "float8_e5m2fnuz", "kFloat8_e8m0fnu": "float8_e8m0fnu", "kFloat4_e2m1fn_x2": "float4_e2m1fn_x2",
    "kComplexFloat": "complex64", "kComplexDouble": "complex128",
}  # fmt: skip
_SCALAR_TYPES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "Bool": "bool", "BFloat16": "bfloat16", "UInt16": "uint16",
    "UInt32": "uint32", "UInt64": "uint64", "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "Float8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_NAMES = {
    "true": "True", "false": "False", "nullptr": "None", "NULL": "None", "nullopt": "None", "INFINITY": 'float("inf")',
    "NAN": 'float("nan")', "INT_MAX": "2147483647", "INT_MIN": "-2147483648", "UINT_MAX": "4294967295",
    "INT32_MAX": "2147483647", "INT64_MAX": "9223372036854775807", "LLONG_MAX": "9223372036854775807",
}  # fmt: skip
_LIMITS = {
    ("int", "max"): "2147483647", ("int32_t", "max"): "2147483647", ("int", "min"): "-2147483648",
    ("int32_t", "min"): "-2147483648", ("int", "lowest"): "-2147483648", ("int64_t", "max"): "9223372036854775807",
    ("int64_t", "min"): "-9223372036854775808", ("uint8_t", "max"): "255", ("uint16_t", "max"): "65535",
    ("uint32_t", "max"): "4294967295", ("uint64_t", "max"): "18446744073709551615", ("size_t", "max"): "18446744073709551615",
    ("float", "infinity"): 'float("inf")', ("double", "infinity"): 'float("inf")',
    ("float", "quiet_NaN"): 'float("nan")', ("double", "quiet_NaN"): 'float("nan")',
    ("float", "max"): "3.4028234663852886e+38", ("double", "max"): "1.7976931348623157e+308",
    ("float", "lowest"): "-3.4028234663852886e+38", ("double", "lowest"): "-1.7976931348623157e+308",
    ("float", "min"): "1.1754943508222875e-38", ("double", "min"): "2.2250738585072014e-308",
    ("float", "epsilon"): "1.1920928955078125e-07", ("double", "epsilon"): "2.220446049250313e-16",
}  # fmt: skip
_LIMIT_NAMES = frozenset(name for _, name in _LIMITS)
_TUPLES = frozenset({"make_tuple", "make_pair", "tuple", "pair", "forward_as_tuple"})
_SEQUENCES = frozenset({"vector", "list", "deque", "array", "initializer_list"})
_WRAPPERS = frozenset({
    "optional", "make_optional", "string", "string_view", "move", "cast", "static_cast", "object", "str", "int_", "float_",
    "bool_", "int", "float", "double", "bool", "size_t", "int64_t", "int32_t", "uint32_t", "uint64_t", "int8_t", "uint8_t",
    "int16_t", "uint16_t", "long", "unsigned", "any", "handle", "Scalar",
})  # fmt: skip
_ARITHMETIC = frozenset({"+", "-", "*", "<<", ">>", "&", "|", "^"})
_NUMBER = re.compile(
    r"(?P<digits>0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)(?P<suffix>[uUlLfFzZ]*)"
)
_STRING_PREFIX = re.compile(r"^(?:u8|[uUL])?")


@dataclass(frozen=True)
class Written:
    """Python text of a value; ``note`` says what was written where the text is ``...``."""

    text: str
    note: str = ""

    @property
    def known(self) -> bool:
        """Does the text stand for the value?"""
        return self.text != UNKNOWN


# Gives the Python text behind a C++ name (a constant or a bound enum's member), or None.
Names = Callable[[str], str | None]


def python_value(node: Node, names: Names) -> Written:
    """Python text of a C++ expression."""
    text = _value(node, names)
    return Written(text) if text is not None else Written(UNKNOWN, one_line(node.text or b"", 120))


def string_value(node: Node) -> str | None:
    """The text that a C++ string literal (or a run of them) stands for, None for anything else."""
    if node.type == "concatenated_string":
        parts = [string_value(child) for child in node.named_children if child.type != "comment"]
        return None if any(part is None for part in parts) else "".join(part for part in parts if part is not None)
    if node.type == "raw_string_literal":
        text = (node.text or b"").decode("utf-8", "replace")
        match = re.match(r'^(?:u8|[uUL])?R"(?P<fence>[^(]*)\((?P<body>.*)\)(?P=fence)"$', text, re.DOTALL)
        return match.group("body") if match else None
    if node.type == "string_literal":
        text = _STRING_PREFIX.sub("", (node.text or b"").decode("utf-8", "replace"), count=1)
        return _unescape(text[1:-1])
    return None


def _unescape(text: str) -> str | None:
    if "\\" not in text:
        return text
    body = re.sub(r"\\\?", "?", text).replace("\\\n", "")
    # Every quote inside is escaped already; C++'s other escapes are Python's.
    try:
        value = ast.literal_eval('"' + body.replace("\n", "\\n") + '"')
    except (SyntaxError, ValueError):
        return None
    return str(value)


def _value(node: Node, names: Names) -> str | None:
    kind = node.type
    if kind == "number_literal":
        return number_text((node.text or b"").decode())
    if kind in ("true", "false", "null", "nullptr"):
        return _NAMES.get((node.text or b"").decode(), "None")
    if kind in ("string_literal", "concatenated_string", "raw_string_literal"):
        string = string_value(node)
        return quoted(string) if string is not None else None
    if kind == "char_literal":
        character = _unescape((node.text or b"").decode("utf-8", "replace").strip("'"))
        return quoted(character) if character is not None and len(character) == 1 else None
    if kind == "parenthesized_expression" and len(_elements(node)) == 1:
        return _value(_elements(node)[0], names)
    if kind in ("identifier", "qualified_identifier", "type_identifier", "field_identifier"):
        return _name(one_line(node.text or b""), names)
    if kind == "unary_expression":
        return _unary(node, names)
    if kind == "binary_expression":
        return _binary(node, names)
    if kind == "cast_expression":
        value = node.child_by_field_name("value")
        return _value(value, names) if value is not None else None
    if kind == "initializer_list":
        parts = _values(node, names)
        return f"[{', '.join(parts)}]" if parts is not None else None
    if kind == "call_expression":
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return None
        return _call(one_line(function.text or b""), arguments, names)
    if kind == "compound_literal_expression":
        type_node, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if type_node is None or value is None:
            return None
        return _call(one_line(type_node.text or b""), value, names)
    return None


def number_text(written: str) -> str | None:
    """Python text of a C++ number literal: separators and suffixes dropped, octal and hexadecimal evaluated."""
    text = written.replace("'", "")
    sign = ""
    if text[:1] in "+-":
        sign, text = text[0].replace("+", ""), text[1:]
    match = _NUMBER.fullmatch(text)
    # In a hexadecimal literal F is a digit, so only a decimal one may end in it.
    if match is None or not match.group("digits"):
        return None
    digits = match.group("digits")
    is_hex = digits[:2].lower() == "0x"
    try:
        if is_hex or digits[:2].lower() == "0b":
            return sign + str(int(digits, 0))
        if any(mark in digits for mark in ".eE") or "f" in match.group("suffix").lower():
            return sign + repr(float(digits))
        if len(digits) > 1 and digits[0] == "0":
            return sign + str(int(digits, 8))
        return sign + str(int(digits))
    except ValueError:
        return None


def _name(text: str, names: Names) -> str | None:
    text = text.removeprefix("::")
    spaces, _, last = text.rpartition("::")
    space = spaces.rpartition("::")[2]
    if last in _NAMES:
        return _NAMES[last]
    if space in ("torch", "at", "c10") and last in _DTYPES:
        return f"torch.{_DTYPES[last]}"
    if space == "ScalarType" and last in _SCALAR_TYPES:
        return f"torch.{_SCALAR_TYPES[last]}"
    return names(text)


def _unary(node: Node, names: Names) -> str | None:
    operator, argument = node.child_by_field_name("operator"), node.child_by_field_name("argument")
    if operator is None or argument is None:
        return None
    value = _value(argument, names)
    if value is None:
        return None
    sign = (operator.text or b"").decode()
    if sign == "-":
        return value[1:] if value.startswith("-") else f"-{value}"
    if sign == "+":
        return value
    if sign == "!" and value in ("True", "False"):
        return "False" if value == "True" else "True"
    return None


def _binary(node: Node, names: Names) -> str | None:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = node.child_by_field_name("operator")
    if left is None or right is None or operator is None:
        return None
    sign = (operator.text or b"").decode()
    one, two = _value(left, names), _value(right, names)
    if sign not in _ARITHMETIC or one is None or two is None:
        return None
    if not (re.fullmatch(r"-?\d+", one) and re.fullmatch(r"-?\d+", two)):
        return None
    a, b = int(one), int(two)
    if sign in ("<<", ">>") and not 0 <= b < 64:
        return None
    result = {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "<<": lambda: a << b, ">>": lambda: a >> b,
        "&": lambda: a & b, "|": lambda: a | b, "^": lambda: a ^ b,
    }[sign]()  # fmt: skip
    return str(result)


def _elements(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _values(node: Node, names: Names) -> list[str] | None:
    found: list[str] = []
    for child in _elements(node):
        value = _value(child, names)
        if value is None:
            return None
        found.append(value)
    return found


def _call(function: str, arguments: Node, names: Names) -> str | None:
    kind = parse_type(function)
    last = kind.name.rpartition("::")[2]
    if last in _LIMIT_NAMES:
        limit = re.fullmatch(r"(?:std::)?numeric_limits<(?P<type>.+)>::(?P<name>\w+)", function)
        if limit is not None:
            return _LIMITS.get((limit.group("type").removeprefix("std::"), limit.group("name")))
    if last == "static_cast" or (last in _WRAPPERS and not (last == "optional" and len(_elements(arguments)) > 1)):
        parts = _values(arguments, names)
        if parts is None or len(parts) > 1:
            return None
        if parts:
            return parts[0]
        return {"optional": "None", "string": '""', "str": '""', "object": "None", "bool": "False"}.get(
            last, "0" if last not in ("float", "double") else "0.0"
        )
    if last in _TUPLES:
        parts = _values(arguments, names)
        if parts is None:
            return None
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if last in _SEQUENCES:
        elements = _elements(arguments)
        if arguments.type == "argument_list" and elements:
            # vector(n, x) counts; only a braced list spells the elements.
            is_braced = len(elements) == 1 and elements[0].type == "initializer_list"
            return _value(elements[0], names) if is_braced else None
        parts = _values(arguments, names)
        return f"[{', '.join(parts)}]" if parts is not None else None
    if last == "none" and not _elements(arguments):
        return "None"
    if last == "dict" and not _elements(arguments):
        return "{}"
    if last == "Tensor" and not _elements(arguments):
        return "None"
    return None
