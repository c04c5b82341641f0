"""C++ types as Python annotations, where pybind11's own conversion leaves no doubt.

Mirrors the casters of pybind11 (``pybind11/stl.h``, ``pybind11/pytypes.h``) and of torch
(``torch/csrc/utils/pybind.h``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_INTEGERS = frozenset({
    "int", "short", "long", "unsigned", "signed", "size_t", "ssize_t", "ptrdiff_t", "intptr_t", "uintptr_t",
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "SymInt", "Py_ssize_t",
})  # fmt: skip
_TORCH = {
    "Tensor": "torch.Tensor",
    "Device": "torch.device",
    "Stream": "torch.Stream",
    "Generator": "torch.Generator",
    "Dtype": "torch.dtype",
    "ScalarType": "torch.dtype",
    "Layout": "torch.layout",
    "MemoryFormat": "torch.memory_format",
}
_TORCH_SPACES = frozenset({"torch", "at", "c10", "stable", "headeronly"})
_PYTHON = {
    "bytes": "bytes",
    "bytearray": "bytearray",
    "dict": "dict",
    "list": "list",
    "tuple": "tuple",
    "set": "set",
    "str": "str",
    "bool_": "bool",
    "int_": "int",
    "float_": "float",
    "none": "None",
    "slice": "slice",
}
_LISTS = frozenset({"vector", "list", "deque", "array", "valarray", "ArrayRef"})
_POINTERS = frozenset({"shared_ptr", "unique_ptr", "intrusive_ptr"})
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|class|enum|typename|register|mutable)\b")


@dataclass(frozen=True)
class CppType:
    """A type taken apart: name with namespaces, template arguments, levels of pointer. References and const are gone."""

    name: str
    arguments: tuple[CppType, ...] = ()
    pointer: int = 0


def parse_type(text: str) -> CppType:
    """Read a type written on one line; what is not a plain type (a function type) comes back under its whole text."""
    text = _QUALIFIERS.sub(" ", text).strip()
    pointer = 0
    while text and text[-1] in "&*":
        pointer += text[-1] == "*"
        text = text[:-1].strip()
    while text.endswith("[]"):
        pointer += 1
        text = text[:-2].strip()
    text = re.sub(r"\s+", " ", text).removeprefix("::")
    opened = text.find("<")
    if opened < 0 or not text.endswith(">"):
        return CppType(text, (), pointer)
    arguments = tuple(parse_type(part) for part in split_arguments(text[opened + 1 : -1]))
    return CppType(text[:opened].strip(), arguments, pointer)


def split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets; an empty text has no arguments."""
    parts: list[str] = []
    depth = 0
    current = ""
    for char in text:
        if char in "<([{":
            depth += 1
        elif char in ">)]}":
            depth -= 1
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    if current.strip():
        parts.append(current.strip())
    return parts


def is_variadic(text: str) -> str:
    """ "args" for ``py::args``, "kwargs" for ``py::kwargs``, "" for any other type."""
    name = parse_type(text).name
    return {"py::args": "args", "pybind11::args": "args", "py::kwargs": "kwargs", "pybind11::kwargs": "kwargs"}.get(
        name, ""
    )


def annotation(text: str, follow: Callable[[str], str | None]) -> str | None:
    """Python annotation for a C++ type, None where it is not clear.

    ``follow`` gives the type behind an alias, or None where the name is no alias.
    """
    return _annotation(parse_type(text), follow, 0)


def _annotation(kind: CppType, follow: Callable[[str], str | None], depth: int) -> str | None:
    if depth > 16:
        return None
    spaces, _, last = kind.name.rpartition("::")
    parts = spaces.split("::") if spaces else []
    if kind.pointer:
        return "str" if kind.pointer == 1 and kind.name == "char" else None
    words = kind.name.split(" ")
    if kind.name == "void":
        return "None"
    if kind.name == "bool":
        return "bool"
    if kind.name in ("float", "double", "long double"):
        return "float"
    if kind.name in ("char", "wchar_t", "char16_t", "char32_t"):
        return "str"
    if last in _INTEGERS and not kind.arguments and (not parts or parts[-1] in ("std", "c10", "py", "pybind11")):
        return "int"
    if all(word in ("unsigned", "signed", "long", "short", "int", "char") for word in words):
        return "int"
    if parts and parts[-1] in _TORCH_SPACES and not kind.arguments:
        if last in _TORCH:
            return _TORCH[last]
        if last == "string_view":
            return "str"
        if last == "IntArrayRef":
            return "list[int]"
        if last == "TensorList":
            return "list[torch.Tensor]"
    if parts in (["py"], ["pybind11"]):
        return _PYTHON.get(last)
    if parts == ["std"] and last in ("string", "string_view", "wstring"):
        return "str"
    if parts == ["std"] and last == "nullopt_t":
        return "None"
    inner = [_annotation(argument, follow, depth + 1) for argument in kind.arguments]
    if kind.arguments and (not parts or parts[-1] in ("std", "c10", "at", "torch")):
        return _container(last, kind, inner)
    aliased = follow(kind.name) if not kind.arguments else None
    if aliased is not None and aliased != kind.name:
        return _annotation(parse_type(aliased), follow, depth + 1)
    return None


def _container(last: str, kind: CppType, inner: list[str | None]) -> str | None:
    first = inner[0]
    if last == "optional":
        if first is None:
            return None
        return first if first.endswith("| None") or first == "None" else f"{first} | None"
    if last in _POINTERS:
        return first
    if last == "complex":
        return "complex"
    if last in _LISTS:
        return f"list[{first}]" if first is not None else None
    if last in ("set", "unordered_set"):
        return f"set[{first}]" if first is not None else None
    known = [one for one in inner if one is not None]
    if last in ("map", "unordered_map"):
        return (
            f"dict[{known[0]}, {known[1]}]"
            if len(known) >= 2 and inner[0] is not None and inner[1] is not None
            else None
        )
    if len(known) != len(inner):
        return None
    if last in ("tuple", "pair"):
        return f"tuple[{', '.join(known)}]" if known else "tuple[()]"
    if last == "variant":
        return " | ".join(
            dict.fromkeys(
                "None" if argument.name == "std::monostate" else one
                for argument, one in zip(kind.arguments, known, strict=True)
            )
        )
    return None
