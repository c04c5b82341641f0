"""A lexer for C++ text: tokens without comments and white space, their digest, and canonical one-line text.

Works on bytes, because a syntax tree counts in bytes. Independent of any grammar, so a digest outlives a parser's
version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from porter.surface.digest import combine

# ``>`` is always a token of its own: ``> >`` and ``>>`` close the same templates.
_PUNCTUATION = rb"<=>|->\*|<<=|\.\.\.|->|\+\+|--|<<|<=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|##|\.\*|."
_TOKEN = re.compile(
    rb"(?P<skip>\s+|//(?:[^\n\\]|\\\r?\n|\\.)*|/\*.*?\*/|\\\r?\n)"
    rb'|(?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)")'
    rb'|(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")'
    rb"|(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')"
    rb"|(?P<number>\.?[0-9](?:[eEpP][+-]|'?[\w.])*)"
    rb"|(?P<name>[A-Za-z_$\x80-\xff][\w$\x80-\xff]*)"
    rb"|(?P<punctuation>" + _PUNCTUATION + rb")",
    re.DOTALL,
)


class Token(NamedTuple):
    """One token. ``kind``: raw, string, char, number, name or punctuation; offsets count bytes."""

    kind: str
    text: bytes
    start: int
    end: int


def tokens(data: bytes) -> Iterator[Token]:
    """Tokens of C++ text in order; comments, white space and line joins are left out."""
    for match in _TOKEN.finditer(data):
        kind = match.lastgroup
        if kind == "fence":
            kind = "raw"
        if kind is None or kind == "skip":
            continue
        yield Token(kind, match.group(), match.start(), match.end())


def digest_tokens(parts: Iterable[bytes]) -> str:
    """Hex digest (32 characters) of pieces of C++ text in order, moved by any token and by nothing else."""
    words: list[str] = []
    for part in parts:
        words.extend(token.text.decode("utf-8", "replace") for token in tokens(part))
        words.append(";;")
    return combine(words)


def one_line(data: bytes, limit: int = 0) -> str:
    """C++ text on one line without comments, spaced alike however it was written; cut to ``limit`` characters if given."""
    out: list[str] = []
    previous: Token | None = None
    before_previous: Token | None = None
    for token in tokens(data):
        text = token.text.decode("utf-8", "replace")
        if previous is not None and _spaced(before_previous, previous, token):
            out.append(" ")
        out.append(text)
        before_previous, previous = previous, token
    line = "".join(out)
    return line if not limit or len(line) <= limit else line[: limit - 3] + "..."


_SIGNS = frozenset({b"+", b"-"})
_OPERATORS = frozenset({
    b"=", b"==", b"!=", b"<=", b">=", b"&&", b"||", b"+=", b"-=", b"*=", b"/=", b"%=", b"&=", b"|=", b"^=", b"<<", b"/",
    b"%", b"|", b"^", b"?", b"<=>", b"+", b"-",
})  # fmt: skip


def _is_operand(token: Token | None) -> bool:
    return token is not None and (token.kind != "punctuation" or token.text in (b")", b"]"))


def _spaced(before: Token | None, left: Token, right: Token) -> bool:
    if left.text == b",":
        return True
    if left.kind != "punctuation" and right.kind != "punctuation":
        return True
    if right.text in _OPERATORS:
        return right.text not in _SIGNS or _is_operand(left)
    if left.text in _OPERATORS:
        return left.text not in _SIGNS or _is_operand(before)
    return False
