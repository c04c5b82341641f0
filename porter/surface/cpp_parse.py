"""Parsing C++ that the grammar does not know whole: text repairs, and parsing piece by piece.

Every repair replaces text by as many spaces, so offsets and lines stay those of the source; what a digest is computed
from is the source itself. A file that still has errors is cut at namespace level, so that one construct that cannot be
parsed costs nothing but itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tree_sitter
import tree_sitter_cpp
from tree_sitter import Node

from porter.surface.cpp_tokens import Token, tokens

_LANGUAGE = tree_sitter.Language(tree_sitter_cpp.language())
Name = tuple[str, ...]


class Piece(NamedTuple):
    """A parsed part of a file: the namespaces around it and the root of its tree."""

    scope: Name
    root: Node


def parse_pieces(text: bytes) -> tuple[Piece, ...]:
    """Trees of a file: one where it parses, after repairs if need be; else one a construct at namespace level."""
    parser = tree_sitter.Parser(_LANGUAGE)
    root = parser.parse(text).root_node
    count = count_errors(root)
    mended = text
    for repair in _REPAIRS:
        if not count:
            break
        # Repairs add up: one may show its worth only once another is made.
        before, mended = mended, repair(mended)
        if mended == before:
            continue
        other = parser.parse(mended).root_node
        fewer = count_errors(other)
        if fewer < count:
            text, root, count = mended, other, fewer
    if not count:
        return (Piece((), root),)
    pieces = [piece for scope, start, end in outline(text) for piece in _parse_range(text, scope, start, end)]
    in_pieces = sum(count_errors(piece.root) for piece in pieces)
    # Even with as many errors, pieces keep their namespaces apart from the damage.
    return tuple(pieces) if pieces and in_pieces <= count else (Piece((), root),)


def count_errors(root: Node) -> int:
    """Errors and missing tokens in a tree."""
    found = 0
    stack = [root]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            found += 1
        if node.has_error:
            stack.extend(node.children)
    return found


def _parse_range(text: bytes, scope: Name, start: int, end: int) -> Iterator[Piece]:
    row = text.count(b"\n", 0, start)
    column = start - (text.rfind(b"\n", 0, start) + 1)
    last = text.count(b"\n", 0, end)
    last_column = end - (text.rfind(b"\n", 0, end) + 1)
    piece = tree_sitter.Range((row, column), (last, last_column), start, end)
    yield Piece(scope, tree_sitter.Parser(_LANGUAGE, included_ranges=[piece]).parse(text).root_node)


# -- the outline -------------------------------------------------------------------------------------------------

_CLOSES = {b"{": b"}", b"(": b")", b"[": b"]"}


def outline(text: bytes) -> list[tuple[Name, int, int]]:
    """(namespaces, start, end) of every construct at namespace level, found by matching brackets alone."""
    stream = _code_tokens(text)
    found: list[tuple[Name, int, int]] = []
    scope: list[tuple[str, ...]] = []
    index = 0
    while index < len(stream):
        if stream[index].text == b"}":
            if scope:
                scope.pop()
            index += 1
            continue
        first = index
        head: list[bytes] = []
        while index < len(stream) and stream[index].text not in (b";", b"{", b"}"):
            if stream[index].text in (b"(", b"["):
                index = _matching(stream, index)
                head.append(b"()")
            else:
                head.append(stream[index].text)
            index += 1
        if index >= len(stream):
            break
        closer = stream[index]
        if closer.text == b"}":
            continue
        if closer.text == b"{":
            inner = _namespace(head)
            if inner is not None:
                scope.append(inner)
                index += 1
                continue
            index = _matching(stream, index)
            if index < len(stream) and _goes_on(head):
                while index + 1 < len(stream) and stream[index].text != b";":
                    index = _matching(stream, index) if stream[index].text in _CLOSES else index
                    index += 1
        if index >= len(stream):
            break
        flat = tuple(word for part in scope for word in part)
        found.append((flat, stream[first].start, stream[index].end))
        index += 1
    return found


def _code_tokens(text: bytes) -> list[Token]:
    """Tokens outside preprocessor lines."""
    directives = [match.span() for match in _DIRECTIVE.finditer(text)]
    out: list[Token] = []
    at = 0
    for token in tokens(text):
        while at < len(directives) and directives[at][1] <= token.start:
            at += 1
        if at == len(directives) or token.start < directives[at][0]:
            out.append(token)
    return out


def _matching(stream: Sequence[Token], index: int) -> int:
    """Index of the bracket that closes the one at ``index`` (the end of the stream where none does)."""
    opened, closed = stream[index].text, _CLOSES[stream[index].text]
    depth = 0
    while index < len(stream):
        if stream[index].text == opened:
            depth += 1
        elif stream[index].text == closed:
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return index


def _namespace(head: Sequence[bytes]) -> Name | None:
    """Names of the namespace that a head opens (() for ``extern "C"`` and an unnamed one), None for anything else."""
    words = [word for word in head if word != b"inline"]
    if words and words[0] == b"namespace":
        return tuple(
            word.decode()
            for word in words[1:]
            if (word not in (b"::", b"()") and word[:1].isalpha()) or word[:1] == b"_"
        )
    if len(words) == 2 and words[0] == b"extern" and words[1].startswith(b'"'):
        return ()
    return None


def _goes_on(head: Sequence[bytes]) -> bool:
    """Does a construct go on to a semicolon after its braces: a type, or a variable with an initialiser?"""
    if b"=" in head and b"operator" not in head:
        return True
    return any(word in head for word in (b"class", b"struct", b"union", b"enum")) and b"()" not in _after_type(head)


def _after_type(head: Sequence[bytes]) -> list[bytes]:
    for index, word in enumerate(head):
        if word in (b"class", b"struct", b"union", b"enum") and (index == 0 or head[index - 1] not in (b"<", b",")):
            rest = list(head[index + 1 :])
            # alignas(16), __attribute__((x)) and FOO_API(x) may stand before the name.
            while len(rest) > 1 and rest[1] == b"()":
                rest = rest[2:]
            return rest[: rest.index(b":")] if b":" in rest else rest
    return []


# -- repairs -----------------------------------------------------------------------------------------------------

_DIRECTIVE = re.compile(rb"^[ \t]*\#(?:[^\n\\]|\\\r?\n|\\.)*", re.MULTILINE)
_CONDITIONAL = re.compile(
    rb"^[ \t]*\#[ \t]*(?:if|ifdef|ifndef|elif|elifdef|elifndef|else|endif)\b(?:[^\n\\]|\\\r?\n|\\.)*", re.MULTILINE
)
# The grammar has no pointers to members: they are read as plain pointers, and const after the parameters is dropped.
_MEMBER_POINTER = re.compile(rb"\(\s*(?:::)?(?:\w+(?:<[^<>;()]*>)?::)+\s*\*")
_CONST_TYPE = re.compile(rb"(?<=\))\s*const\s*(?:noexcept\s*)?(?=>)")
_LAUNCH = re.compile(rb"<<<[^;{}]*?>>>")
_ATTRIBUTE = re.compile(
    rb"\b__(?:global|device|host|forceinline|grid_constant|restrict|noinline|shared|constant)__\b"
    rb"|\b__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|\b__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)"
)
_CLASS_ATTRIBUTE = re.compile(
    rb"(?<=\bclass)\s+[A-Z][A-Z0-9_]*(?:\([^()]*\))?(?=\s+\w+[\w:<>]*\s*(?:final\s*)?[:{])"
    rb"|(?<=\bstruct)\s+[A-Z][A-Z0-9_]*(?:\([^()]*\))?(?=\s+\w+[\w:<>]*\s*(?:final\s*)?[:{])"
)
_MACRO_WORD = re.compile(rb"[A-Z][A-Z0-9_]{2,}")
_TYPE_WORDS = frozenset(
    {b"void", b"int", b"bool", b"float", b"double", b"char", b"long", b"unsigned", b"const", b"auto"}
)


def _blank(match: re.Match[bytes]) -> bytes:
    return spaces(match.group())


def spaces(text: bytes) -> bytes:
    """As many spaces as the text has bytes, its line ends kept."""
    return re.sub(rb"[^\n]", b" ", text)


def _without_member_pointers(text: bytes) -> bytes:
    text = _MEMBER_POINTER.sub(lambda match: b"(" + _blank(match)[2:] + b"*", text)
    return _CONST_TYPE.sub(_blank, text)


def _without_attributes(text: bytes) -> bytes:
    for pattern in (_ATTRIBUTE, _CLASS_ATTRIBUTE, _LAUNCH):
        text = pattern.sub(_blank, text)
    return text


def _without_conditionals(text: bytes) -> bytes:
    return _CONDITIONAL.sub(_blank, text)


def _without_odd_macros(text: bytes) -> bytes:
    """Blank macro calls that no declaration or expression looks like.

    Those are: a statement of its own outside every function, one whose arguments hold a type or nothing at all, and a
    macro without arguments on a line of its own.
    """
    stream = _code_tokens(text)
    out = bytearray(text)
    in_function: list[bool] = []
    index = 0
    head_has_call = False
    while index < len(stream):
        token = stream[index]
        if token.text == b"{":
            in_function.append(head_has_call or (bool(in_function) and in_function[-1]))
            head_has_call = False
        elif token.text == b"}":
            if in_function:
                in_function.pop()
            head_has_call = False
        elif token.text == b";":
            head_has_call = False
        elif token.text == b"(":
            head_has_call = True
        if _is_lone_macro(stream, index, text):
            out[token.start : token.end] = spaces(token.text)
            index += 1
            continue
        if _starts_macro(stream, index):
            close = _matching(stream, index + 1)
            after = stream[close + 1].text if close + 1 < len(stream) else b""
            inside = bool(in_function) and in_function[-1]
            if close < len(stream) and after != b"{" and (not inside or _is_odd(stream[index + 2 : close])):
                end = stream[close + 1].end if after == b";" else stream[close].end
                out[token.start : end] = spaces(text[token.start : end])
                index = close + (2 if after == b";" else 1)
                continue
        index += 1
    return bytes(out)


def _starts_macro(stream: Sequence[Token], index: int) -> bool:
    token = stream[index]
    if token.kind != "name" or not _MACRO_WORD.fullmatch(token.text):
        return False
    if index + 1 >= len(stream) or stream[index + 1].text != b"(":
        return False
    return index == 0 or stream[index - 1].text in (b";", b"{", b"}", b")", b":")


def _is_lone_macro(stream: Sequence[Token], index: int, text: bytes) -> bool:
    """A macro without arguments on a line of its own, after a finished construct."""
    token = stream[index]
    if token.kind != "name" or not _MACRO_WORD.fullmatch(token.text):
        return False
    if (
        index
        and stream[index - 1].text not in (b";", b"}", b")", b":")
        and not _MACRO_WORD.fullmatch(stream[index - 1].text)
    ):
        return False
    following = stream[index + 1] if index + 1 < len(stream) else None
    if following is None or following.text in (b"(", b"=", b",", b";", b"::", b"{", b"<", b")"):
        return False
    before = text[text.rfind(b"\n", 0, token.start) + 1 : token.start]
    return not before.strip() and b"\n" in text[token.end : following.start]


def _is_odd(inside: Sequence[Token]) -> bool:
    depth = 0
    fresh = True
    for token in inside:
        if fresh and depth == 0 and (token.text in _TYPE_WORDS or token.text == b","):
            return True
        fresh = token.text == b","
        if token.text in _CLOSES:
            depth += 1
        elif token.text in (b"}", b")", b"]"):
            depth -= 1
    return bool(inside) and fresh


_REPAIRS: tuple[Callable[[bytes], bytes], ...] = (
    _without_member_pointers,
    _without_attributes,
    _without_odd_macros,
    _without_conditionals,
)
