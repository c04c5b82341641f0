"""Reading bindings from stubs."""

from __future__ import annotations

from pathlib import Path

import pytest

from porter.errors import UnreadableUpstreamError
from porter.surface.model import BindingFacts, Parameter, ParameterKind, Signature
from porter.surface.pyi import read_stub


def stub(tmp_path: Path, text: str = "", **files: str) -> dict[str, BindingFacts]:
    """Bindings of ``pkg._C`` by dotted path, from its own stub and those of its submodules."""
    folder = tmp_path / "pkg" / "_C"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.pyi").write_text(text)
    for name, content in files.items():
        (folder / f"{name}.pyi").write_text(content)
    return {f"{one.scope}.{one.name}".lstrip("."): one for one in read_stub(tmp_path, "pkg._C")}


def test_function(tmp_path: Path) -> None:
    found = stub(tmp_path, "def f(a: int, /, b: str = 'x', *, c: float | None = None) -> bool: ...\n")
    assert found["f"] == BindingFacts(
        "",
        "f",
        "function",
        "pkg/_C/__init__.pyi",
        1,
        Signature(
            (
                Parameter("a", ParameterKind.POSITIONAL_ONLY, None, "int"),
                Parameter("b", ParameterKind.POSITIONAL, '"x"', "str"),
                Parameter("c", ParameterKind.KEYWORD_ONLY, "None", "float | None"),
            ),
            "bool",
        ),
    )


def test_class_with_members(tmp_path: Path) -> None:
    text = """
    class Base: ...
    class Shape(Base):
        COUNT: typing.ClassVar[int]  # value = 3
        LIMIT = 7
        size: int
        def __init__(self, width: int = 1) -> None: ...
        def area(self, arg0: float) -> float: ...
        @staticmethod
        def make(arg0: int, arg1: int) -> Shape: ...
        @classmethod
        def named(cls, name: str) -> Shape: ...
        @property
        def label(self) -> str: ...
        @label.setter
        def label(self, value: str) -> None: ...
        @property
        def fixed(self) -> int: ...
        class Inner:
            def go(self) -> None: ...
    """
    found = stub(tmp_path, "\n".join(line[4:] for line in text.splitlines()))
    assert {name: (one.kind, one.writable) for name, one in found.items()} == {
        "Base": ("class", None),
        "Shape": ("class", None),
        "Shape.COUNT": ("constant", None),
        "Shape.LIMIT": ("constant", None),
        "Shape.size": ("property", True),
        "Shape.__init__": ("method", None),
        "Shape.area": ("method", None),
        "Shape.make": ("staticmethod", None),
        "Shape.named": ("staticmethod", None),
        "Shape.label": ("property", True),
        "Shape.fixed": ("property", False),
        "Shape.Inner": ("class", None),
        "Shape.Inner.go": ("method", None),
    }
    assert found["Shape"].bases == ("Base",)
    assert found["Shape.__init__"].signature == Signature((Parameter("width", default="1", annotation="int"),), "None")
    area = found["Shape.area"].signature
    assert area is not None
    assert area.parameters == (Parameter("arg0", ParameterKind.POSITIONAL_ONLY, None, "float"),)
    assert found["Shape.label"].signature == Signature((), "str")
    assert (found["Shape.LIMIT"].value, found["Shape.COUNT"].value) == ("7", None)
    assert found["Shape.COUNT"].opaque


def test_submodules_have_a_scope(tmp_path: Path) -> None:
    found = stub(
        tmp_path,
        "from . import engine\nfrom ._other import thing\n__all__ = ['engine', 'thing']\n",
        engine="import torch\n__all__ = ['f']\ndef f() -> torch.Tensor: ...\nN: int = 3\n",
    )
    assert {name: one.kind for name, one in found.items()} == {
        "thing": "constant",
        "engine": "module",
        "engine.f": "function",
        "engine.N": "constant",
    }
    assert found["thing"].alias_of == "._other.thing"
    assert found["engine.N"].value == "3"


@pytest.mark.parametrize("overload", ["typing.overload", "overload"])
def test_overloads_have_no_single_signature(tmp_path: Path, overload: str) -> None:
    text = f"@{overload}\ndef f(a: int) -> int: ...\n@{overload}\ndef f(a: str, b: int) -> str: ...\n"
    found = stub(tmp_path, text)["f"]
    assert found.signature is None
    assert found.opaque == "2 overloads in the stub"


def test_default_that_the_stub_leaves_out_is_noted(tmp_path: Path) -> None:
    found = stub(tmp_path, "def f(mode: Mode = ...) -> None: ...\n")["f"]
    assert found.notes == ("default of mode: the stub does not give it",)


def test_module_stub_beside_the_extension(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "_C.pyi").write_text("def f() -> None: ...\n")
    assert [one.name for one in read_stub(tmp_path, "pkg._C")] == ["f"]


def test_no_stub_gives_nothing(tmp_path: Path) -> None:
    assert read_stub(tmp_path, "pkg._C") == ()


def test_every_unreadable_stub_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableUpstreamError) as caught:
        stub(tmp_path, "def f(:\n", one="class:\n", fine="def g() -> None: ...\n")
    assert [cause.path for cause in caught.value.causes] == ["pkg/_C/__init__.pyi", "pkg/_C/one.pyi"]
