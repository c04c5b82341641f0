"""Reads the types of kernel arguments: ``T.Tensor((n, d), dtype)`` in all its spellings."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from porter.surface.digest import literal_string
from porter.surface.model import TensorSpec
from porter.surface.text import text_of
from porter.surface.tilelang_access import is_dtype
from porter.surface.tilelang_body import Body
from porter.surface.tilelang_names import Dialect

_FORMS = {
    "T.Tensor": "tensor",
    "T.StridedTensor": "strided",
    "T.Buffer": "buffer",
    "T.SharedBuffer": "buffer",
    "T.FragmentBuffer": "buffer",
    "T.LocalBuffer": "buffer",
    "T.ptr": "pointer",
    "T.Ptr": "pointer",
    "T.handle": "pointer",
}
_FIELDS = {
    "strided": ("shape", "strides", "dtype"),
    "tensor": ("shape", "dtype"),
    "buffer": ("shape", "dtype"),
    "pointer": ("dtype",),
}
_PLAIN_SCALARS = frozenset({"int", "float", "bool", "str", "complex"})


class TypeReader:
    """Reads annotations as tensor types.

    Parameters:
        dialect: TileLang's names in the module.
        skip: receives literals that were followed by name, which the type holds from then on.
    """

    def __init__(self, dialect: Dialect, skip: list[cst.CSTNode]) -> None:
        self._dialect = dialect
        self._skip = skip

    def spec(self, node: cst.BaseExpression, body: Body, depth: int = 0) -> TensorSpec:
        """A kernel argument's type."""
        text = text_of(node)
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
            return self._quoted(node, body, text, depth)
        if isinstance(node, cst.Call):
            form = _FORMS.get(self._dialect.of(node) or "")
            return TensorSpec("opaque", text=text) if form is None else self.fields(form, node, node.args, body)
        if isinstance(node, cst.Subscript):
            form = _FORMS.get(self._dialect.of(node.value) or "")
            if form is None:
                return TensorSpec("tensor", text=text) if _is_torch(text) else TensorSpec("opaque", text=text)
            parts = [element.slice.value for element in node.slice if isinstance(element.slice, cst.Index)]
            if len(parts) != len(node.slice):
                return TensorSpec("opaque", text=text)
            if not self._shape_first(parts, body):
                return TensorSpec(form, tuple(text_of(part) for part in parts), text=text)
            return self.fields(form, node, [cst.Arg(part) for part in parts], body)
        if isinstance(node, cst.IfExp):
            return _either(
                text_of(node.test), self.spec(node.body, body, depth), self.spec(node.orelse, body, depth), text
            )
        path = self._dialect.of(node)
        if path in _FORMS:
            return TensorSpec(_FORMS[path], text=text)
        if path is not None and path.startswith("T.") and is_dtype(path[2:]):
            return TensorSpec("scalar", dtype=text, text=text)
        if text in _PLAIN_SCALARS:
            return TensorSpec("scalar", dtype=text, text=text)
        if _is_torch(text):
            return TensorSpec("tensor", text=text)
        if isinstance(node, cst.Name) and depth < 4:
            values = self._values(node.value, body)
            specs = [self.spec(value, body, depth + 1) for value in values]
            if specs and all(spec == specs[0] for spec in specs) and specs[0].form != "opaque":
                return specs[0]
            if (not values and node.value in body.names()) or "type" in node.value.lower():
                return TensorSpec("scalar", dtype=text, text=text)
        if isinstance(node, cst.Attribute) and "type" in node.attr.value.lower():
            return TensorSpec("scalar", dtype=text, text=text)
        return TensorSpec("opaque", text=text)

    def _quoted(self, node: cst.SimpleString | cst.ConcatenatedString, body: Body, text: str, depth: int) -> TensorSpec:
        value = literal_string(node) if isinstance(node, cst.SimpleString) else ""
        if isinstance(value, str):
            if is_dtype(value):
                return TensorSpec("scalar", dtype=text, text=text)
            try:
                inner = cst.parse_expression(value)
            except (cst.ParserSyntaxError, ValueError):
                return TensorSpec("opaque", text=text)
            if depth < 4 and not isinstance(inner, (cst.SimpleString, cst.ConcatenatedString)):
                return self.spec(inner, body, depth + 1)
        return TensorSpec("opaque", text=text)

    def fields(self, form: str, node: cst.BaseExpression, arguments: Sequence[cst.Arg], body: Body) -> TensorSpec:
        """Shape, strides and dtype of ``T.Tensor(shape, dtype)`` and its kin."""
        given: dict[str, cst.BaseExpression] = {}
        text = text_of(node)
        if any(argument.star for argument in arguments):
            return TensorSpec("opaque", text=text)
        names = iter(_FIELDS[form])
        for argument in arguments:
            if argument.keyword is not None:
                given[argument.keyword.value] = argument.value
            else:
                name = next(names, None)
                if name is not None:
                    given[name] = argument.value
        shape = self._axes(given["shape"], body) if "shape" in given else None
        strides = self._axes(given["strides"], body) if "strides" in given else None
        dtype = text_of(given["dtype"]) if "dtype" in given else None
        return TensorSpec(form, shape, dtype, strides, text)

    def _axes(self, node: cst.BaseExpression, body: Body) -> tuple[str, ...]:
        if isinstance(node, (cst.Tuple, cst.List)):
            return tuple(_element(element) for element in node.elements)
        if isinstance(node, cst.Name):
            values = self._values(node.value, body)
            if len(values) == 1 and isinstance(values[0], (cst.Tuple, cst.List)):
                self._skip.append(values[0])
                return tuple(_element(element) for element in values[0].elements)
        return (text_of(node),)

    def _values(self, name: str, body: Body) -> list[cst.BaseExpression]:
        place: Body | None = body
        while place is not None:
            if name in place.assigned:
                return [value for value, _ in place.assigned[name]]
            if any(param.name.value == name for param in place.parameters):
                return []
            place = place.outer
        return []

    def _shape_first(self, parts: Sequence[cst.BaseExpression], body: Body) -> bool:
        """``T.Tensor[shape, dtype]`` rather than ``T.Tensor[n, m]``: TileLang looks for a tuple or a string."""
        if any(isinstance(part, (cst.Tuple, cst.List, cst.SimpleString)) for part in parts):
            return True
        if len(parts) < 2:
            return False
        first = parts[0]
        if isinstance(first, cst.Name) and any(
            isinstance(v, (cst.Tuple, cst.List)) for v in self._values(first.value, body)
        ):
            return True
        last = text_of(parts[-1])
        path = self._dialect.of(parts[-1])
        return (
            (path is not None and path.startswith("T.") and (is_dtype(path[2:]) or path in _FORMS))
            or "type" in last.lower()
            or "shape" in text_of(first)
        )


def _either(test: str, first: TensorSpec, second: TensorSpec, text: str) -> TensorSpec:
    """``a if test else b`` of two types that differ in their details alone."""
    if first.form != second.form or first.form == "opaque":
        return TensorSpec("opaque", text=text)

    def one(a: str | None, b: str | None) -> str | None:
        return a if a == b else f"{a} if {test} else {b}"

    def axes(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if a == b or a is None or b is None:
            return a if a == b else (f"{a} if {test} else {b}",)
        if len(a) != len(b):
            return (f"({', '.join(a)}) if {test} else ({', '.join(b)})",)
        return tuple(str(one(x, y)) for x, y in zip(a, b, strict=True))

    return TensorSpec(
        first.form,
        axes(first.shape, second.shape),
        one(first.dtype, second.dtype),
        axes(first.strides, second.strides),
        text,
    )


def _element(element: cst.BaseElement) -> str:
    return ("*" if isinstance(element, cst.StarredElement) else "") + text_of(element.value)


def _is_torch(text: str) -> bool:
    return text.replace("Optional[", "").split("[")[0].split("|")[0].strip().rstrip("]").rpartition(".")[2] in (
        "Tensor",
        "Parameter",
    )
