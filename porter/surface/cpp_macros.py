"""Macros that wrap bindings, expanded in the text before it is parsed.

Only macros whose body binds something are expanded: all others are left as the source has them, so definitions keep
the text (and the digest) they were written with. Line numbers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from porter.surface.cpp_tokens import Token, tokens

_DEFINE = re.compile(
    rb"^[ \t]*\#[ \t]*define[ \t]+(?P<name>\w+)(?:\((?P<parameters>[^)]*)\))?(?P<body>(?:[^\n\\]|\\\r?\n|\\.)*)",
    re.MULTILINE,
)
_BINDS = re.compile(
    rb"\bdef(?:_\w+)?\s*\(|\bpy::|\bpybind11::|\.\s*(?:value|attr|impl)\s*\(|TORCH_LIBRARY|PYBIND11_MODULE"
)
# Macros of the binding libraries: the reader knows them by name.
KNOWN = frozenset({
    b"PYBIND11_MODULE", b"PYBIND11_EMBEDDED_MODULE", b"TORCH_LIBRARY", b"TORCH_LIBRARY_FRAGMENT", b"TORCH_LIBRARY_IMPL",
    b"STABLE_TORCH_LIBRARY", b"STABLE_TORCH_LIBRARY_FRAGMENT", b"STABLE_TORCH_LIBRARY_IMPL",
})  # fmt: skip
_DEPTH = 8
_COMMA = Token("punctuation", b",", 0, 0)


Find = Callable[[bytes], "Macro | None"]


@dataclass(frozen=True)
class Macro:
    """A ``#define``. ``parameters`` is None for one without a parameter list; ``offset`` is where it stands."""

    name: bytes
    parameters: tuple[bytes, ...] | None
    body: bytes
    offset: int

    @property
    def binds(self) -> bool:
        """Does the body bind a name?"""
        return self.name not in KNOWN and _BINDS.search(self.body) is not None


def read_macros(data: bytes) -> tuple[Macro, ...]:
    """Every ``#define`` of a file, in order."""
    found: list[Macro] = []
    for match in _DEFINE.finditer(data):
        listed = match.group("parameters")
        parameters = None if listed is None else tuple(word.strip() for word in listed.split(b",") if word.strip())
        found.append(Macro(match.group("name"), parameters, match.group("body").strip(), match.start()))
    return tuple(found)


def expand(data: bytes, own: Sequence[Macro], shared: Mapping[bytes, Macro]) -> bytes:
    """``data`` with its binding macros expanded.

    ``own`` are the file's own macros (the last one defined before a use holds), ``shared`` those of other files.
    """
    mine: dict[bytes, list[Macro]] = {}
    for one in own:
        if one.binds:
            mine.setdefault(one.name, []).append(one)
    names = mine.keys() | shared.keys()
    if not names or not any(name in data for name in names):
        return data

    def at(name: bytes, offset: int) -> Macro | None:
        listed = mine.get(name)
        if not listed:
            return shared.get(name)
        before = [one for one in listed if one.offset < offset]
        return before[-1] if before else listed[0]

    stream = list(tokens(data))
    directives = _directive_spans(data)
    out: list[bytes] = []
    done = 0
    index = 0
    span = 0
    while index < len(stream):
        token = stream[index]
        while span < len(directives) and directives[span][1] <= token.start:
            span += 1
        inside = span < len(directives) and directives[span][0] <= token.start
        macro = None if inside or token.kind != "name" or token.text not in names else at(token.text, token.start)
        if macro is None:
            index += 1
            continue
        arguments, after = _arguments(stream, index, macro)
        if after is None:
            index += 1
            continue
        end = stream[after - 1].end
        text = _substitute(macro, arguments, partial(at, offset=token.start), frozenset({macro.name}), 1)
        out.append(data[done : token.start])
        out.append(text)
        out.append(b"\n" * data.count(b"\n", token.start, end))
        done = end
        index = after
    out.append(data[done:])
    return b"".join(out)


def _directive_spans(data: bytes) -> list[tuple[int, int]]:
    """Byte spans of preprocessor lines, line joins included."""
    return [match.span() for match in re.finditer(rb"^[ \t]*\#(?:[^\n\\]|\\\r?\n|\\.)*", data, re.MULTILINE)]


def _arguments(stream: Sequence[Token], index: int, macro: Macro) -> tuple[list[list[Token]], int | None]:
    """Arguments of the macro call whose name stands at ``index``, and the index after it (None: not a call)."""
    if macro.parameters is None:
        return [], index + 1
    at = index + 1
    if at >= len(stream) or stream[at].text != b"(":
        return [], None
    depth = 0
    current: list[Token] = []
    arguments: list[list[Token]] = []
    while at < len(stream):
        token = stream[at]
        at += 1
        if token.text in (b"(", b"[", b"{"):
            depth += 1
            if depth == 1:
                continue
        elif token.text in (b")", b"]", b"}"):
            depth -= 1
            if depth == 0:
                arguments.append(current)
                return arguments, at
        elif token.text == b"," and depth == 1:
            arguments.append(current)
            current = []
            continue
        current.append(token)
    return [], None


def _join(words: Sequence[Token]) -> bytes:
    return b" ".join(token.text for token in words)


def _stringify(words: Sequence[Token]) -> bytes:
    out: list[bytes] = []
    for position, token in enumerate(words):
        if position and words[position - 1].end < token.start:
            out.append(b" ")
        text = token.text
        if token.kind in ("string", "char"):
            text = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        out.append(text)
    return b'"' + b"".join(out) + b'"'


def _substitute(macro: Macro, arguments: list[list[Token]], find: Find, used: frozenset[bytes], depth: int) -> bytes:
    bound: dict[bytes, list[Token]] = {}
    parameters = macro.parameters or ()
    for position, parameter in enumerate(parameters):
        if parameter in (b"...",) or parameter.endswith(b"..."):
            name = b"__VA_ARGS__" if parameter == b"..." else parameter[:-3].strip()
            rest: list[Token] = []
            for extra in arguments[position:]:
                if rest:
                    rest.append(_COMMA)
                rest.extend(extra)
            bound[name] = rest
            break
        bound[parameter] = arguments[position] if position < len(arguments) else []
    body = list(tokens(macro.body))
    out: list[bytes] = []
    index = 0
    while index < len(body):
        token = body[index]
        following = body[index + 1] if index + 1 < len(body) else None
        if token.text == b"#" and following is not None and following.text in bound:
            out.append(_stringify(bound[following.text]))
            index += 2
            continue
        if token.text == b"##" and out and following is not None:
            pasted = _join(bound[following.text]) if following.text in bound else following.text
            out[-1] += pasted
            index += 2
            continue
        if token.text == b"__VA_OPT__" and following is not None and following.text == b"(":
            inner, after = _arguments(body, index, Macro(b"__VA_OPT__", (b"...",), b"", 0))
            if after is not None:
                if bound.get(b"__VA_ARGS__"):
                    whole = [word for at, part in enumerate(inner) for word in ([_COMMA] if at else []) + part]
                    out.extend(_join(bound[word.text]) if word.text in bound else word.text for word in whole)
                index = after
                continue
        out.append(_join(bound[token.text]) if token.text in bound else token.text)
        index += 1
    text = b" ".join(out)
    return text if depth >= _DEPTH else _expand_again(text, find, used, depth)


def _expand_again(text: bytes, find: Find, used: frozenset[bytes], depth: int) -> bytes:
    stream = list(tokens(text))
    out: list[bytes] = []
    index = 0
    while index < len(stream):
        token = stream[index]
        macro: Macro | None = find(token.text) if token.kind == "name" and token.text not in used else None
        if macro is not None:
            arguments, after = _arguments(stream, index, macro)
            if after is not None:
                out.append(_substitute(macro, arguments, find, used | {macro.name}, depth + 1))
                index = after
                continue
        out.append(token.text)
        index += 1
    return b" ".join(out)
