"""Structural digests of libcst nodes.

A digest moves with any change of meaning and with nothing else: white space, comments, parentheses, trailing commas,
line joining and docstrings are left out, string and number literals are evaluated, adjacent strings are joined. It is
computed from the libcst tree, so it does not depend on the Python version that runs porter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import cache

import libcst as cst

from porter.surface.sketch import SKETCH
from porter.surface.text import literal, string_parts, string_value

# Fields that hold layout, never meaning.
_LAYOUT = frozenset({
    "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "comma", "semicolon", "colon", "newline", "dot",
    "leading_lines", "lines_after_decorators", "lines_after_module_imports", "header", "footer", "indent", "equal",
    "star", "posonly_ind", "encoding", "default_indent", "default_newline", "has_trailing_newline", "type_comment",
    "open_brace", "close_brace", "separator", "lines_after_header", "second_colon", "trailing_comma",
})  # fmt: skip
# Nodes whose ``star``/``equal`` field does carry meaning.
_MEANT = {"Arg": frozenset({"star"}), "Param": frozenset({"star"}), "FormattedStringExpression": frozenset({"equal"})}
_EMPTY = cst.Module([])

# Length of the token runs that a sketch samples.
_SHINGLE = 5

Emit = Callable[[str], None]


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    meant = _MEANT.get(kind.__name__, frozenset())
    return tuple(
        f.name
        for f in dataclasses.fields(kind)
        if f.name in meant or (f.name not in _LAYOUT and not f.name.startswith(("whitespace", "trailing_whitespace")))
    )


def digest_of(*nodes: cst.CSTNode | None, skip: Collection[cst.CSTNode] = (), salt: str = "") -> str:
    """Hex digest (32 characters) of nodes in order.

    ``skip`` holds nodes (by identity) to leave out; ``salt`` is hashed first, for facts that belong to the nodes but
    are not in them.
    """
    return _digest(_tokens(nodes, skip, salt))


def _tokens(nodes: Iterable[cst.CSTNode | None], skip: Collection[cst.CSTNode], salt: str) -> list[str]:
    out: list[str] = [salt]
    skipped = frozenset(map(id, skip))
    for node in nodes:
        _walk(node, out.append, skipped)
        out.append(";")
    return out


def _digest(tokens: Iterable[str]) -> str:
    return hashlib.sha256("\x00".join(tokens).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def fingerprint(*nodes: cst.CSTNode | None, skip: Collection[cst.CSTNode] = (), salt: str = "") -> tuple[str, str]:
    """``digest_of`` and, from the same walk, a similarity sketch (see ``sketch.py``)."""
    out = _tokens(nodes, skip, salt)
    tokens = [
        token.encode("utf-8", "surrogatepass") for token in out if token not in ("[", "]", "{", "}", ";", "-", "?")
    ]
    shingles = {zlib.crc32(b"\x00".join(tokens[i : i + _SHINGLE])) for i in range(max(0, len(tokens) - _SHINGLE + 1))}
    return _digest(out), "".join(f"{value:08x}" for value in sorted(shingles)[:SKETCH])


def combine(parts: Collection[str]) -> str:
    """Digest of a sequence of strings, order kept."""
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def _walk(node: object, emit: Emit, skip: frozenset[int]) -> None:
    if node is None:
        emit("-")
        return
    if isinstance(node, str):
        emit(node)
        return
    if isinstance(node, (list, tuple)):
        emit("[")
        for item in node:
            _walk(item, emit, skip)
        emit("]")
        return
    if id(node) in skip:
        return
    if isinstance(node, cst.MaybeSentinel):
        emit("?")
        return
    kind = type(node)
    special = _SPECIAL.get(kind)
    if special is not None:
        special(node, emit, skip)
        return
    if isinstance(node, cst.BaseParenthesizableWhitespace):
        return
    emit(kind.__name__)
    for name in _fields(kind):  # type: ignore[arg-type]
        value = getattr(node, name)
        if isinstance(value, str):
            emit(value)
        else:
            _walk(value, emit, skip)


def _number(node: cst.Integer | cst.Float | cst.Imaginary, emit: Emit, _skip: frozenset[int]) -> None:
    emit("#")
    emit(repr(literal(node.value)))


def literal_string(node: cst.SimpleString) -> str | bytes:
    """The value that a string token stands for."""
    value = literal(node.value)
    assert isinstance(value, (str, bytes))
    return value


def _string(node: cst.BaseString, emit: Emit, skip: frozenset[int]) -> None:
    parts = string_parts(node)
    if all(isinstance(part, cst.SimpleString) for part in parts):
        values = [literal_string(part) for part in parts if isinstance(part, cst.SimpleString)]
        first = values[0]
        joined: str | bytes
        if isinstance(first, bytes):
            joined = b"".join(value for value in values if isinstance(value, bytes))
        else:
            joined = "".join(value for value in values if isinstance(value, str))
        emit("$")
        # Not repr(): which characters it escapes depends on the Unicode tables of the running Python.
        emit(ascii(joined))
        return
    # An f-string beside plain ones is one run of text and expressions: cutting it elsewhere means the same.
    emit("f$")
    text: list[str] = []

    def flush() -> None:
        if text:
            emit(ascii("".join(text)))
            text.clear()

    for part in parts:
        if isinstance(part, cst.SimpleString):
            text.append(str(literal_string(part)))
            continue
        if not isinstance(part, cst.FormattedString):
            # A template string: its prefix may say "raw", its quotes are layout.
            flush()
            assert isinstance(part, cst.TemplatedString)
            emit("t$r" if "r" in part.start.lower() else "t$")
            _walk(part.parts, emit, skip)
            continue
        raw = "r" in part.start.lower()
        for piece in part.parts:
            if isinstance(piece, cst.FormattedStringText):
                text.append(_formatted_text(piece.value, raw=raw))
            else:
                flush()
                _walk(piece, emit, skip)
    flush()
    emit("$f")


def _formatted_text(value: str, *, raw: bool) -> str:
    value = value.replace("{{", "{").replace("}}", "}")
    if raw or "\\" not in value:
        return value
    # Escape every unescaped quote so the text fits one literal, then let Python evaluate the escapes.
    out: list[str] = []
    index = 0
    while index < len(value):
        char = value[index]
        if char == "\\" and index + 1 < len(value):
            out.append(value[index : index + 2])
            index += 2
            continue
        out.append({'"': '\\"', "\n": "\\n", "\r": "\\r"}.get(char, char))
        index += 1
    return str(literal('"' + "".join(out) + '"'))


def _formatted_expression(
    node: cst.FormattedStringExpression | cst.TemplatedStringExpression, emit: Emit, skip: frozenset[int]
) -> None:
    emit(type(node).__name__)
    if node.equal is not None or isinstance(node, cst.TemplatedStringExpression):
        # Here the expression's own text, spaces included, is part of the value.
        emit(_EMPTY.code_for_node(node))
    _walk(node.expression, emit, skip)
    _walk(node.conversion, emit, skip)
    _walk(node.format_spec, emit, skip)


def _subscript(node: cst.Subscript, emit: Emit, skip: frozenset[int]) -> None:
    emit("Subscript")
    _walk(node.value, emit, skip)
    index = node.slice[0].slice
    if len(node.slice) == 1 and isinstance(index, cst.Index) and index.star is None:
        # a[(b, c)] is a[b, c], and a[b,] is a[(b,)].
        value = index.value
        if isinstance(node.slice[0].comma, cst.Comma):
            _walk(cst.Tuple([cst.Element(value)]), emit, skip)
        else:
            _walk(value, emit, skip)
        return
    if all(isinstance(element.slice, cst.Index) for element in node.slice):
        emit("Tuple")
        emit("[")
        for element in node.slice:
            assert isinstance(element.slice, cst.Index)
            emit("Element" if element.slice.star is None else "StarredElement")
            _walk(element.slice.value, emit, skip)
        emit("]")
        return
    _walk(node.slice, emit, skip)


def _does_nothing(statement: cst.BaseSmallStatement) -> bool:
    if isinstance(statement, cst.Expr):
        return string_value(statement.value) is not None
    return isinstance(statement, cst.Pass)


def _statements(body: object) -> list[cst.CSTNode]:
    """The statements of a block, flat: how they share lines is layout. A bare string or ``pass`` does nothing."""
    if isinstance(body, (cst.IndentedBlock, cst.Module)):
        lines: list[cst.CSTNode] = []
        for item in body.body:
            lines.extend(_statements(item))
        return lines
    if isinstance(body, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
        return [small for small in body.body if not _does_nothing(small)]
    assert isinstance(body, cst.CSTNode)
    return [body]


def _block(node: cst.CSTNode, emit: Emit, skip: frozenset[int]) -> None:
    emit("{")
    for statement in _statements(node):
        _walk(statement, emit, skip)
    emit("}")


def _nothing(_node: cst.CSTNode, _emit: Emit, _skip: frozenset[int]) -> None:
    return


def _name(node: cst.Name, emit: Emit, _skip: frozenset[int]) -> None:
    emit(node.value)


_SPECIAL: dict[type, Callable[..., None]] = {
    cst.Name: _name,
    cst.Integer: _number,
    cst.Float: _number,
    cst.Imaginary: _number,
    cst.SimpleString: _string,
    cst.ConcatenatedString: _string,
    cst.FormattedString: _string,
    cst.TemplatedString: _string,
    cst.FormattedStringExpression: _formatted_expression,
    cst.TemplatedStringExpression: _formatted_expression,
    cst.Subscript: _subscript,
    cst.IndentedBlock: _block,
    cst.SimpleStatementSuite: _block,
    cst.SimpleStatementLine: _block,
    cst.Module: _block,
    cst.Comment: _nothing,
    cst.EmptyLine: _nothing,
    cst.TrailingWhitespace: _nothing,
    cst.SimpleWhitespace: _nothing,
    cst.ParenthesizedWhitespace: _nothing,
    cst.Newline: _nothing,
    cst.ParamSlash: _nothing,
}
