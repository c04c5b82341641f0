"""Refuses files nested so deeply that the parser, which is native code, would overrun its stack and end the process."""

from __future__ import annotations

import io
import re
import tokenize

from porter.errors import UnreadableFileError

# Python itself refuses more nested brackets than this.
_DEEPEST = 200
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_CHAIN = re.compile(rb"(?:(?:not|await|lambda)\b[ \t]*:?[ \t]*|[-+~][ \t]*){%d}" % (_DEEPEST + 1))


def check_nesting(path: str, data: bytes) -> None:
    """Let a file pass unless brackets, or prefix operators in a row, nest deeper than Python's own limit.

    Raises:
        UnreadableFileError: they do, or the brackets do not match; the line is named.
    """
    if _depth(data) > _DEEPEST:
        # Brackets in strings and comments were counted too: ask Python's tokenizer.
        _check_brackets(path, data)
    for chain in _CHAIN.finditer(data):
        line, start = data.count(b"\n", 0, chain.start()) + 1, data.rfind(b"\n", 0, chain.start()) + 1
        if b"#" not in data[start : chain.start()]:
            raise UnreadableFileError(
                f"is nested too deeply to be read: more than {_DEEPEST} operators in a row", path=path, line=line
            )


def _depth(data: bytes) -> int:
    depth = deepest = 0
    for byte in data.translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _check_brackets(path: str, data: bytes) -> None:
    depth = 0
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
            if token.type == tokenize.OP and token.string in "([{":
                depth += 1
            elif token.type == tokenize.OP and token.string in ")]}":
                depth -= 1
            if depth > _DEEPEST:
                message = f"is nested too deeply to be read: more than {_DEEPEST} brackets; expected what Python itself accepts"
                raise UnreadableFileError(message, path=path, line=token.start[0])
    except (tokenize.TokenError, SyntaxError) as error:
        told, *place = error.args
        line = place[0][0] if isinstance(error, tokenize.TokenError) and place else getattr(error, "lineno", None)
        message = f"is not valid Python: {told}; expected brackets that match"
        raise UnreadableFileError(message, path=path, line=line or 1) from error
