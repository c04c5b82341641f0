"""Is a file nested so deeply that the parser, which is native code, would overflow its stack and kill the process?"""

from __future__ import annotations

import re

# Python itself refuses more nested brackets than this.
DEEPEST = 200
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_CHAIN = re.compile(rb"(?:(?:not|await|lambda)\b[ \t]*:?[ \t]*|[-+~][ \t]*){%d}" % (DEEPEST + 1))


def too_deep(data: bytes) -> bool:
    """True when brackets, or prefix operators in a row, nest deeper than Python allows.

    Brackets inside strings and comments count as well: what is left of them after removing pairs is what matters.

    >>> too_deep(b"f((1), [2, {3}])")
    False
    >>> too_deep(b"(" * 300 + b")" * 300)
    True
    """
    brackets = data.translate(None, _NOT_BRACKETS)
    for _ in range(DEEPEST):
        reduced = brackets.replace(b"()", b"").replace(b"[]", b"").replace(b"{}", b"")
        if len(reduced) == len(brackets):
            break
        brackets = reduced
    return _depth(brackets) > DEEPEST or any(pair in brackets for pair in (b"()", b"[]", b"{}")) or _CHAIN.search(data) is not None


def _depth(brackets: bytes) -> int:
    depth = deepest = 0
    for byte in brackets:
        depth = depth + 1 if byte in b"([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest
