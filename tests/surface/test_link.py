"""The public surface of packages of a few lines: one rule a test."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from porter.errors import SourceError
from porter.surface.link import extension_modules, link_package
from porter.surface.model import (
    BindingFacts,
    Export,
    Module,
    ModuleFacts,
    Parameter,
    Signature,
    Surface,
    Symbol,
    SymbolKind,
)
from porter.surface.python import extract

ROOT = Path("/nonexistent")


def facts(files: Mapping[str, str]) -> dict[str, ModuleFacts]:
    return {path: extract(path, textwrap.dedent(text).encode()) for path, text in files.items()}


def link(
    files: Mapping[str, str], bindings: Mapping[str, list[BindingFacts]] | None = None, root: Path = ROOT
) -> Surface:
    return link_package("src", "p", root, facts(files), bindings)


def ids(surface: Surface) -> list[str]:
    return [symbol.id for symbol in surface.symbols]


def symbol(surface: Surface, identity: str) -> Symbol:
    return next(one for one in surface.symbols if one.id == identity)


def module(surface: Surface, name: str) -> Module:
    return next(one for one in surface.modules if one.name == name)


def shown(surface: Surface, name: str) -> dict[str, str]:
    return {export.name: export.target for export in module(surface, name).exports}


# -- what is public --------------------------------------------------------------------------------------------------


def test_names_without_all() -> None:
    found = link(
        {
            "p/__init__.py": "def f(): pass\ndef _g(): pass\nX = 1\n_Y = 2\n__version__ = '1'\n__all_ = 3\nclass C: pass\nimport os\n"
        }
    )
    assert ids(found) == ["p.C", "p.X", "p.__version__", "p.f"]
    assert module(found, "p").exports == ()
    assert module(found, "p").exports_all is None


def test_all_decides() -> None:
    found = link(
        {"p/__init__.py": "__all__ = ['f', '_h']\ndef f(): pass\ndef g(): pass\ndef _h(): pass\n__version__ = '1'\n"}
    )
    assert ids(found) == ["p.__version__", "p._h", "p.f"]
    assert module(found, "p").exports_all == ("f", "_h")


def test_symbols_stand_in_definition_order() -> None:
    found = link({"p/__init__.py": "def z(): pass\nA = 1\nclass m: pass\ndef b(): pass\n"})
    assert module(found, "p").symbols == ("p.z", "p.A", "p.m", "p.b")


def test_submodules() -> None:
    found = link(
        {
            "p/__init__.py": "",
            "p/a.py": "def f(): pass",
            "p/_b.py": "def g(): pass",
            "p/c/__init__.py": "",
            "p/c/d.py": "def h(): pass",
            "p/_e/f.py": "def i(): pass",
        }
    )
    assert ids(found) == ["p.a.f", "p.c.d.h"]
    assert [(one.name, one.is_package) for one in found.modules] == [
        ("p", True),
        ("p.a", False),
        ("p.c", True),
        ("p.c.d", False),
    ]


def test_private_module_shows_through_a_public_one() -> None:
    found = link({"p/__init__.py": "from ._impl import f\n", "p/_impl.py": "def f(): return g()\ndef g(): pass\n"})
    assert ids(found) == ["p._impl.f"]
    assert symbol(found, "p._impl.f").aliases == ("p.f",)
    assert symbol(found, "p._impl.f").module == "p._impl"
    assert shown(found, "p") == {"f": "p._impl.f"}
    assert module(found, "p._impl").symbols == ("p._impl.f",)


def test_private_module_under_a_public_name() -> None:
    found = link({"p/__init__.py": "from . import _impl as impl\n", "p/_impl.py": "def f(): pass\n_x = 1\n"})
    assert ids(found) == ["p._impl.f"]
    assert symbol(found, "p._impl.f").aliases == ("p.impl.f",)
    assert module(found, "p").exports == (Export("impl", "p._impl", is_module=True),)


def test_imports_of_a_plain_module_are_its_own() -> None:
    found = link(
        {
            "p/__init__.py": "",
            "p/a.py": "from .b import f\nfrom .b import g as g\nimport torch\n",
            "p/b.py": "def f(): pass\ndef g(): pass",
        }
    )
    assert shown(found, "p.a") == {"g": "p.b.g"}
    assert module(found, "p.a").reachable == (Export("f", "p.b.f"),)
    assert symbol(found, "p.b.f").aliases == ()
    assert symbol(found, "p.b.g").aliases == ("p.a.g",)


def test_foreign_names() -> None:
    found = link(
        {
            "p/__init__.py": "import os\nfrom torch import dtype\nimport numpy as np\n",
            "p/a.py": "from torch import dtype\n__all__ = ['dtype']\n",
            "p/b.py": "from torch import dtype\nfrom torch import Tensor as Tensor\n",
        }
    )
    assert module(found, "p").foreign == (Export("dtype", "torch.dtype"), Export("np", "numpy"))
    assert module(found, "p.a").foreign == (Export("dtype", "torch.dtype"),)
    assert module(found, "p.b").foreign == (Export("Tensor", "torch.Tensor"),)


# -- star imports ----------------------------------------------------------------------------------------------------


def test_star_import_takes_all() -> None:
    found = link(
        {
            "p/__init__.py": "from .a import *\n",
            "p/a.py": "__all__ = ['f', '_g']\ndef f(): pass\ndef _g(): pass\ndef h(): pass\n",
        }
    )
    assert shown(found, "p") == {"f": "p.a.f"}
    assert "p.a._g" in ids(found)


def test_star_import_without_all_takes_imports_too() -> None:
    found = link(
        {
            "p/__init__.py": "from .a import *\n",
            "p/a.py": "from .b import *\nfrom .c import k\nfrom typing import Optional\ndef f(): pass\ndef _g(): pass\n",
            "p/b.py": "def h(): pass\n",
            "p/c.py": "def k(): pass\n",
        }
    )
    assert shown(found, "p") == {"f": "p.a.f", "h": "p.b.h", "k": "p.c.k"}
    assert symbol(found, "p.b.h").aliases == ("p.h",)


def test_names_that_come_only_through_a_star_import() -> None:
    """A body's names are followed through star imports of other modules' imports."""
    files = {
        "p/__init__.py": "",
        "p/a.py": "from .b import *\ndef f(): return helper()\n",
        "p/b.py": "from .c import helper\n",
        "p/c.py": "def helper(): return 1\n",
    }
    before = symbol(link(files), "p.a.f")
    after = symbol(link({**files, "p/c.py": "def helper(): return 2\n"}), "p.a.f")
    assert before.own == after.own
    assert before.body != after.body


def test_later_binding_wins() -> None:
    files = {"p/a.py": "def f(): return 1\n", "p/b.py": "def f(): return 2\n"}
    star_last = link({**files, "p/__init__.py": "from .a import f\nfrom .b import *\n"})
    star_first = link({**files, "p/__init__.py": "from .b import *\nfrom .a import f\n"})
    own_last = link({**files, "p/__init__.py": "from .b import *\ndef f(): return 3\n"})
    assert shown(star_last, "p") == {"f": "p.b.f"}
    assert shown(star_first, "p") == {"f": "p.a.f"}
    assert shown(own_last, "p") == {} and "p.f" in ids(own_last)


def test_star_import_of_another_package_is_named() -> None:
    found = link({"p/__init__.py": "x = 1\nfrom torch import *\n"})
    assert found.opaque == ("p/__init__.py:2: `from torch import *` binds names of another package",)


def test_star_import_in_a_cycle() -> None:
    found = link(
        {
            "p/__init__.py": "from .a import *\n",
            "p/a.py": "from .b import *\ndef f(): pass\n",
            "p/b.py": "from .a import *\ndef g(): pass\n",
        }
    )
    assert shown(found, "p") == {"f": "p.a.f", "g": "p.b.g"}


# -- __all__ ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("__all__ = ['f'] + ['g']", ["f", "g"]),
        ("__all__ = ['f']\n__all__ += a.__all__", ["f", "g"]),
        ("__all__ = ['f']\n__all__.extend(a.__all__)", ["f", "g"]),
        ("from .a import __all__ as _A\n__all__ = ('f', *_A)", ["f", "g"]),
        ("from .a import __all__ as _A\n__all__ = ['f', *_A]\ndel _A", ["f", "g"]),
        ("from .a import __all__", ["g"]),
        ("from .a import __all__ as __all__", ["g"]),
        ("_N = ('f',)\n__all__ = tuple(sorted(dict.fromkeys((*_N, *a.__all__))))", ["f", "g"]),
        ("from .a import NAMES\n__all__ = list(NAMES)", ["f", "g"]),
        ("__all__ = [n for n in dir() if not n.startswith('_') and n != 'a']", ["f", "g"]),
        ("__all__ = [n for n in ('f', 'g', 'x') if n not in {'x'}]", ["f", "g"]),
        ("__all__ = [f'{n}' for n in ('f', 'g')]", ["f", "g"]),
        ("__all__ = tuple({'f', 'g', 'x'} - {'x'})", ["f", "g"]),
        ("__all__ = tuple({'f'} | {'g'})", ["f", "g"]),
        ("__all__ = list({'f': 1, 'g': 2})", ["f", "g"]),
        ("__all__ = list({'f': 1, 'g': 2}.keys())", ["f", "g"]),
    ],
)
def test_computed_all(text: str, names: list[str]) -> None:
    source = f"from . import a\nfrom .a import g\ndef f(): pass\n{text}\n"
    found = link({"p/__init__.py": source, "p/a.py": "__all__ = ['g']\nNAMES = ['f', 'g']\ndef g(): pass\n"})
    assert sorted(module(found, "p").exports_all or ()) == names
    assert not any("__all__" in note for note in found.opaque)


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = make()",
        "__all__ = ['f', *torch.__all__]",
        "__all__ = ['f'] if x else ['g']",
        "__all__ = [n for n in y]",
    ],
)
def test_all_that_cannot_be_known(text: str) -> None:
    """Part of it is named as opaque, and every name that may be in it counts."""
    found = link({"p/__init__.py": f"import torch\ndef f(): pass\ndef g(): pass\ndef _h(): pass\n{text}\n"})
    assert ids(found) == ["p.f", "p.g"]
    assert len(found.opaque) == 1
    assert found.opaque[0].startswith("p/__init__.py:5: __all__ also takes ")


def test_name_in_all_that_nothing_binds() -> None:
    found = link({"p/__init__.py": "def f(): pass\n__all__ = ['f', 'gone']\n"})
    assert ids(found) == ["p.f"]
    assert found.opaque == ("p/__init__.py:2: gone is in __all__, but no statement binds it",)


# -- aliases ---------------------------------------------------------------------------------------------------------


def test_alias_of_a_name() -> None:
    found = link({"p/__init__.py": "def f(): pass\ng = f\nh = g\n"})
    assert ids(found) == ["p.f"]
    assert symbol(found, "p.f").aliases == ("p.g", "p.h")
    assert shown(found, "p") == {"g": "p.f", "h": "p.f"}


def test_alias_of_a_module_attribute() -> None:
    found = link({"p/__init__.py": "from . import a\ng = a.f\nb = a\n", "p/a.py": "def f(): pass\n"})
    assert symbol(found, "p.a.f").aliases == ("p.g",)
    assert Export("b", "p.a", is_module=True) in module(found, "p").exports


def test_alias_of_a_foreign_name_is_a_constant() -> None:
    found = link({"p/__init__.py": "import torch\nhalf = torch.float16\n"})
    assert (symbol(found, "p.half").kind, symbol(found, "p.half").value) == (SymbolKind.CONSTANT, "torch.float16")


def test_alias_of_a_method() -> None:
    found = link(
        {
            "p/__init__.py": "class C:\n    @classmethod\n    def make(cls, a, b=1): pass\n    def m(self, c): pass\nmake = C.make\nm = C.m\n"
        }
    )
    assert [p.name for p in (symbol(found, "p.make").signature or Signature()).parameters] == ["a", "b"]
    assert [p.name for p in (symbol(found, "p.m").signature or Signature()).parameters] == ["self", "c"]
    assert symbol(found, "p.make").kind is SymbolKind.FUNCTION


def test_autograd_apply() -> None:
    source = "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, y=1): pass\nop = F.apply\n"
    found = symbol(link({"p/__init__.py": source}), "p.op")
    assert found.kind is SymbolKind.FUNCTION
    assert [(p.name, p.kind.value, p.default) for p in (found.signature or Signature()).parameters] == [
        ("x", "positional-only", None),
        ("y", "positional-only", "1"),
    ]


# -- branches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("try:\n    x = 1\nexcept E:\n    x = 2\n", "1"),
        ("if a:\n    x = 1\nelse:\n    x = 2\n", "1"),
        ("if not a:\n    x = 1\nelse:\n    x = 2\n", "2"),
        ("if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    x = 3\n", "1"),
        ("if TYPE_CHECKING:\n    x = 1\nelse:\n    x = 2\n", "2"),
        ("x = 1\nif a:\n    x = 2\n", "2"),
        ("x = 1\nx = 2\n", "2"),
        ("try:\n    pass\nexcept E:\n    x = 2\n", "2"),
        ("x = 1\ntry:\n    from other import x\nexcept ImportError:\n    pass\n", "1"),
        ("if sys.version_info >= (3, 9):\n    x = 1\nelse:\n    x = 2\n", "1"),
        ("if sys.version_info < (3, 9):\n    x = 1\nelse:\n    x = 2\n", "2"),
        ("if sys.version_info < (3, 9):\n    x = 1\nelif a:\n    x = 2\nelse:\n    x = 3\n", "2"),
        ("if sys.version_info < (3, 99):\n    x = 1\nelse:\n    x = 2\n", "1"),
    ],
)
def test_branches(source: str, value: str) -> None:
    assert symbol(link({"p/__init__.py": source}), "p.x").value == value


def test_names_of_branches_not_taken_still_count_in_digests() -> None:
    files = {"p/__init__.py": "if a:\n    def g(): return 1\nelse:\n    def g(): return 2\ndef f(): return g()\n"}
    before = symbol(link(files), "p.f")
    after = symbol(link({"p/__init__.py": files["p/__init__.py"].replace("return 2", "return 3")}), "p.f")
    assert before.body != after.body


def test_different_signatures_in_branches_are_named() -> None:
    found = link({"p/__init__.py": "if a:\n    def f(x): pass\nelse:\n    def f(y): pass\n"})
    assert any("f is defined in several branches" in note for note in found.opaque)


def test_optional_module_that_is_not_there() -> None:
    found = link(
        {
            "p/__init__.py": "try:\n    from .envs import table\n    for key in table: pass\nexcept ImportError:\n    pass\n"
        }
    )
    assert ids(found) == []
    assert found.opaque[0] == "p/__init__.py:2: p.envs is imported but is in no file; its names are left out"


def test_fallback_of_a_module_that_is_not_there() -> None:
    found = link({"p/__init__.py": "try:\n    from ._fast import f\nexcept ImportError:\n    def f(x): pass\n"})
    assert ids(found) == ["p.f"]


def test_deleted_names() -> None:
    found = link({"p/__init__.py": "def f(): return _t\n_t = 1\ndef g(): pass\ndel g\n"})
    assert ids(found) == ["p.f"]


# -- modules and names that look alike -------------------------------------------------------------------------------


def test_submodule_with_the_name_of_a_package() -> None:
    files = {
        "p/__init__.py": "from . import torch\nfrom . import testing\nfrom .testing import *\n",
        "p/torch/__init__.py": "def cast(): return 1\n",
        "p/testing.py": "def check(): pass\n",
        "p/a.py": "import torch\ndef f(): return torch.cast()\n",
        "p/b.py": "from . import torch\ndef f(): return torch.cast()\n",
    }
    found = link(files)
    assert Export("torch", "p.torch", is_module=True) in module(found, "p").exports
    changed = link({**files, "p/torch/__init__.py": "def cast(): return 2\n"})
    assert symbol(found, "p.a.f").body == symbol(changed, "p.a.f").body
    assert symbol(found, "p.b.f").body != symbol(changed, "p.b.f").body


def test_function_over_a_submodule_of_its_name() -> None:
    found = link({"p/__init__.py": "from .gate import gate\n", "p/gate.py": "def gate(): pass\n"})
    assert shown(found, "p") == {"gate": "p.gate.gate"}


def test_submodule_over_a_function_of_its_name() -> None:
    found = link({"p/__init__.py": "def gate(): pass\nfrom .gate import other\n", "p/gate.py": "def other(): pass\n"})
    assert "p.gate" not in ids(found)
    assert shown(found, "p") == {"other": "p.gate.other"}


@pytest.mark.parametrize(
    "statement",
    [
        "from .b import g",
        "from p.b import g",
        "from . import b; g = b.g",
        "import p.b; g = p.b.g",
        "import p.b as q; g = q.g",
        "from p import b as q; g = q.g",
    ],
)
def test_ways_to_import(statement: str) -> None:
    files = {"p/__init__.py": "", "p/a.py": f"{statement}\ndef f(): return g()\n", "p/b.py": "def g(): return 1\n"}
    before = symbol(link(files), "p.a.f")
    assert before.body != symbol(link({**files, "p/b.py": "def g(): return 2\n"}), "p.a.f").body


@pytest.mark.parametrize(
    "statement", ["from .b import g", "from . import b as z; g = z.g", "import p.b; g = p.b.g", "from p.b import g"]
)
def test_imports_inside_functions(statement: str) -> None:
    files = {
        "p/__init__.py": "",
        "p/a.py": f"def f():\n    {statement}\n    return g()\n",
        "p/b.py": "def g(): return 1\n",
    }
    used = "g" if "import g" in statement else None
    before, after = (symbol(link({**files, "p/b.py": f"def g(): return {n}\n"}), "p.a.f") for n in (1, 2))
    assert before.body != after.body or used is None


def test_import_cycle() -> None:
    files = {
        "p/__init__.py": "from .a import f\n",
        "p/a.py": "from .b import g\ndef f(): return g()\n",
        "p/b.py": "from . import a\ndef g(): return a.f()\n",
    }
    found = link(files)
    assert symbol(found, "p.a.f").aliases == ("p.f",)
    changed = link({**files, "p/b.py": files["p/b.py"].replace("a.f()", "a.f() + 1")})
    assert symbol(found, "p.a.f").body != symbol(changed, "p.a.f").body


def test_package_below_other_folders() -> None:
    found = link_package(
        "src", "p", ROOT, facts({"python/src/p/__init__.py": "def f(): pass\n", "tests/test_p.py": "def g(): pass\n"})
    )
    assert ids(found) == ["p.f"]
    assert symbol(found, "p.f").path == "python/src/p/__init__.py"


def test_no_such_package() -> None:
    with pytest.raises(SourceError, match="no folder of Python files named 'q'"):
        link_package("src", "q", ROOT, facts({"p/__init__.py": ""}))


def test_import_above_the_top() -> None:
    found = link({"p/__init__.py": "from ... import x\n"})
    assert found.opaque == ("p/__init__.py:1: `...` reaches above the top package",)


# -- classes ---------------------------------------------------------------------------------------------------------


def test_members() -> None:
    found = link({"p/__init__.py": """
            from dataclasses import dataclass
            class Base:
                def inherited(self): pass
            class C(Base):
                X = 1
                _y = 2
                z: int
                def __init__(self, a): self.b = a
                def __call__(self): pass
                def __repr__(self): pass
                def m(self, d): pass
                def _n(self): pass
                @property
                def p(self) -> int: pass
                @p.setter
                def p(self, v): pass
                @staticmethod
                def s(e): pass
                @classmethod
                def c(cls): pass
                class Inner:
                    W = 3
            """})
    kinds = {one.id.removeprefix("p.C."): one.kind.value for one in found.symbols if one.id.startswith("p.C.")}
    assert kinds == {
        "Inner": "class",
        "Inner.W": "attribute",
        "X": "attribute",
        "__call__": "method",
        "__init__": "method",
        "c": "classmethod",
        "m": "method",
        "p": "property",
        "s": "staticmethod",
        "z": "attribute",
    }
    assert symbol(found, "p.C.Inner.W").qualname == "C.Inner.W"
    assert symbol(found, "p.C").bases[0].text == "Base"
    assert symbol(found, "p.C.z").annotation == "int"


@pytest.mark.parametrize(
    ("source", "parameters"),
    [
        ("class C:\n    def __init__(self, a, *, b=1): pass", [("a", None), ("b", "1")]),
        ("class C:\n    pass", None),
        ("class B:\n    def __init__(self, a): pass\nclass C(B): pass", [("a", None)]),
        ("@dataclass\nclass C:\n    a: int\n    b: str = 'x'\n    _c = 3", [("a", None), ("b", '"x"')]),
        (
            "@dataclass\nclass B:\n    a: int\nclass D: pass\n@dataclass\nclass C(B, D):\n    b: int = 1",
            [("a", None), ("b", "1")],
        ),
        (
            "@dataclasses.dataclass(frozen=True)\nclass C:\n    a: list = field(default_factory=list)\n    b: int = field(init=False)",
            [("a", "...")],
        ),
        ("@dataclass\nclass C:\n    a: ClassVar[int] = 1\n    b: int = field(default=2)", [("b", "2")]),
        ("@dataclass\nclass C:\n    a: int\n    _: KW_ONLY\n    b: int", [("a", None), ("b", None)]),
    ],
)
def test_constructor(source: str, parameters: list[tuple[str, str | None]] | None) -> None:
    found = symbol(link({"p/__init__.py": source}), "p.C").signature
    assert (None if found is None else [(p.name, p.default) for p in found.parameters]) == parameters


# -- C++ names -------------------------------------------------------------------------------------------------------


def binding(name: str, scope: str = "", kind: str = "function", **more: object) -> BindingFacts:
    signature = Signature((Parameter("x"),)) if kind != "constant" else None
    return BindingFacts(scope, name, kind, "csrc/api.cpp", 7, signature, digest=f"digest of {scope}.{name}", **more)  # type: ignore[arg-type]


EXTENSION = {
    "p/__init__.py": "from . import _C\nfrom ._C import fast, Handle\nfrom .a import wrapped, fast2\n",
    "p/a.py": "from ._C import fast as _fast\nimport p._C as _C\nfast2 = _C.other\ndef wrapped(y): return _fast(y) + _C.third(y)\n",
}
BINDINGS = {
    "p._C": [
        binding("fast"),
        binding("other"),
        binding("third"),
        binding("Handle", kind="class"),
        binding("wait", "Handle", "method"),
        binding("_hidden", "Handle", "method"),
    ]
}


def test_extension_names() -> None:
    found = link(EXTENSION, BINDINGS)
    assert ids(found) == ["p.Handle", "p.Handle.wait", "p.a.wrapped", "p.fast", "p.other"]
    fast = symbol(found, "p.fast")
    assert (fast.module, fast.qualname, fast.path, fast.line, fast.aliases) == ("p._C", "fast", "csrc/api.cpp", 7, ())
    assert symbol(found, "p.other").aliases == ("p.a.fast2", "p.fast2")
    wait = symbol(found, "p.Handle.wait")
    assert (wait.qualname, [p.name for p in (wait.signature or Signature()).parameters]) == (
        "Handle.wait",
        ["self", "x"],
    )
    assert module(found, "p._C").extension
    assert shown(found, "p") == {"fast": "p.fast", "Handle": "p.Handle", "wrapped": "p.a.wrapped", "fast2": "p.other"}


def test_extension_modules() -> None:
    assert extension_modules("p", ROOT, facts(EXTENSION)) == ("p._C",)
    assert extension_modules(
        "p", ROOT, facts({"p/__init__.py": "if x:\n    from p import npu as b\nelse:\n    from p import cuda as b\n"})
    ) == ("p.cuda", "p.npu")


def test_python_body_depends_on_the_binding_it_calls() -> None:
    before = symbol(link(EXTENSION, BINDINGS), "p.a.wrapped")
    moved = {"p._C": [*BINDINGS["p._C"][:2], binding("third", docs=()), *BINDINGS["p._C"][3:]]}
    assert symbol(link(EXTENSION, moved), "p.a.wrapped").body == before.body
    changed = [BindingFacts("", "third", "function", "csrc/api.cpp", 7, Signature(), digest="another")]
    moved = {"p._C": [*BINDINGS["p._C"][:2], *changed, *BINDINGS["p._C"][3:]]}
    assert symbol(link(EXTENSION, moved), "p.a.wrapped").body != before.body


def test_name_of_a_binding_that_the_package_uses_otherwise() -> None:
    files = {"p/__init__.py": "from .a import op\n", "p/a.py": "from ._C import op as raw\ndef op(): return raw()\n"}
    found = link(files, {"p._C": [binding("op")]})
    assert ids(found) == ["p._C.op", "p.a.op"]


def test_attribute_aliases() -> None:
    found = link(
        {"p/__init__.py": "from ._C import new, old\n"},
        {"p._C": [binding("new"), binding("old", kind="constant", alias_of="new")]},
    )
    assert ids(found) == ["p.new"]
    assert symbol(found, "p.new").aliases == ("p.old",)
    assert module(found, "p._C").exports == (Export("old", "p.new"),)


def test_submodule_of_an_extension() -> None:
    rows = [
        binding("sub", kind="module"),
        binding("inner", "sub"),
        binding("Kind", "sub", "class"),
        binding("m", "sub.Kind", "method"),
    ]
    found = link({"p/__init__.py": "from ._C import sub\n"}, {"p._C": rows})
    assert ids(found) == ["p.sub.Kind", "p.sub.Kind.m", "p.sub.inner"]
    assert symbol(found, "p.sub.Kind.m").module == "p._C.sub"
    assert symbol(found, "p.sub.Kind.m").qualname == "Kind.m"
    assert module(found, "p").exports == (Export("sub", "p._C.sub", is_module=True),)
    assert module(found, "p._C").is_package


def test_extension_without_sources() -> None:
    found = link({"p/__init__.py": "from . import core as _core\ndef f(): return _core.g() + _core.h.i\n"})
    assert ids(found) == ["p.core.g", "p.core.h", "p.f"]
    assert symbol(found, "p.core.g").opaque
    assert symbol(found, "p.core.g").signature is None


def test_unresolved_bindings_are_named() -> None:
    found = link(
        {"p/__init__.py": "from ._C import f\n"}, {"p._C": [binding("f"), binding("*", opaque="a loop makes names")]}
    )
    assert found.opaque == ("csrc/api.cpp:7: a loop makes names",)


def test_binary_beside_a_guarded_import(tmp_path: Path) -> None:
    files = {"p/__init__.py": "try:\n    from ._fast import f\nexcept ImportError:\n    f = None\n"}
    assert extension_modules("p", tmp_path, facts(files)) == ()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "_fast.cpython-312-x86_64-linux-gnu.so").write_bytes(b"")
    (tmp_path / "p" / "_unused.abi3.so").write_bytes(b"")
    assert extension_modules("p", tmp_path, facts(files)) == ("p._fast",)
    assert ids(link(files, root=tmp_path)) == ["p.f"]


# -- body digests ----------------------------------------------------------------------------------------------------


BODIES = {
    "p/__init__.py": "",
    "p/a.py": """
        from .b import helper, TABLE, Base
        from . import b
        import math
        SIZE = 4
        def f(x): return helper(x)
        def g(x): return b.TABLE[x]
        def h(x): return SIZE + x
        class C(Base):
            def m(self): return self._inner()
            def _inner(self): return helper(1)
            def n(self): return 2
        def make(): return C()
        def even(x): return odd(x - 1)
        def odd(x): return even(x - 1)
        def loop(x): return loop(x - 1)
        def outside(x): return math.floor(x)
        """,
    "p/b.py": """
        DEPTH = 1
        def deep(): return DEPTH
        def helper(x, k=1): return deep() + x
        TABLE = {"a": deep()}
        class Base:
            def base(self): return 1
        """,
}


@pytest.mark.parametrize(
    ("path", "old", "new", "moved"),
    [
        ("p/b.py", "DEPTH = 1", "DEPTH = 2", {"f", "g", "C", "C.m", "make"}),
        ("p/b.py", "return deep() + x", "return deep() - x", {"f", "C", "C.m", "make"}),
        ("p/b.py", "k=1", "k=2", {"f", "C", "C.m", "make"}),
        ("p/b.py", "base(self): return 1", "base(self): return 2", {"C", "make"}),
        ("p/a.py", "SIZE = 4", "SIZE = 5", {"h", "SIZE"}),
        ("p/a.py", "return 2", "return 3", {"C", "C.n", "make"}),
        ("p/a.py", "odd(x - 1)", "odd(x - 2)", {"even", "odd"}),
        ("p/a.py", "loop(x - 1)", "loop(x - 2)", {"loop"}),
        ("p/a.py", "import math", "import mathematics as math", {"outside"}),
        ("p/a.py", "def loop(x)", "def loop(x, y=1)", set()),
        ("p/a.py", "import math", "import math  # comment", set()),
        ("p/a.py", "from .b import helper, TABLE, Base", "from .b import (Base, TABLE,\n            helper)", set()),
    ],
)
def test_what_a_change_moves(path: str, old: str, new: str, moved: set[str]) -> None:
    before = {one.id: one.body for one in link(BODIES).symbols}
    assert old in BODIES[path]
    after = {one.id: one.body for one in link({**BODIES, path: BODIES[path].replace(old, new)}).symbols}
    assert {
        name.removeprefix("p.a.") for name in before if before[name] != after[name] and name.startswith("p.a.")
    } == moved


def test_own_digest_is_of_the_body_alone() -> None:
    before, after = link(BODIES), link({**BODIES, "p/b.py": BODIES["p/b.py"].replace("DEPTH = 1", "DEPTH = 2")})
    assert symbol(before, "p.a.f").own == symbol(after, "p.a.f").own


def test_swapped_imports_move_the_body() -> None:
    files = {
        "p/__init__.py": "",
        "p/b.py": "def one(): return 1\ndef two(): return 2\n",
        "p/a.py": "from .b import one as f, two as g\ndef h(): return f() - g()\n",
    }
    swapped = {**files, "p/a.py": files["p/a.py"].replace("one as f, two as g", "two as f, one as g")}
    assert symbol(link(files), "p.a.h").body != symbol(link(swapped), "p.a.h").body


def test_moving_a_helper_to_another_module_moves_nothing() -> None:
    files = {
        "p/__init__.py": "",
        "p/b.py": "def one(): return 1\n",
        "p/c.py": "",
        "p/a.py": "from .b import one\ndef h(): return one()\n",
    }
    other = {
        "p/__init__.py": "",
        "p/c.py": "def one(): return 1\n",
        "p/b.py": "",
        "p/a.py": "from .c import one\ndef h(): return one()\n",
    }
    assert symbol(link(files), "p.a.h").body == symbol(link(other), "p.a.h").body


def test_order_of_files_does_not_matter() -> None:
    assert link(dict(reversed(BODIES.items()))) == link(BODIES)


# -- the rest --------------------------------------------------------------------------------------------------------


def test_names_of_a_module() -> None:
    source = "import torch\nfrom typing import Optional as Opt\nfrom .b import Size\nif TYPE_CHECKING:\n    from x import Late\ndef f(a: Opt[torch.Tensor], b: 'Late', c: Size = Size(1)): return os.x\n"
    found = link({"p/__init__.py": "", "p/a.py": source, "p/b.py": "class Size: pass\n"})
    assert module(found, "p.a").names == (
        ("Late", "x.Late"),
        ("Opt", "typing.Optional"),
        ("Size", "p.b.Size"),
        ("torch", "torch"),
    )


def test_loop_leftovers_are_named_and_left_out() -> None:
    found = link({"p/__init__.py": "for k in (1, 2):\n    last = k\n"})
    assert ids(found) == []
    assert found.opaque == (
        "p/__init__.py:1: k is bound in a loop and is left out",
        "p/__init__.py:2: last is bound in a loop and is left out",
    )


def test_constructs_are_named() -> None:
    found = link({"p/__init__.py": "\nglobals()['x'] = 1\n", "p/a.py": "exec('y = 1')\n"})
    assert found.opaque == ('p/__init__.py:2: assigns to globals()["x"]', 'p/a.py:1: exec("y = 1")')


def test_name_that_only_runtime_binds() -> None:
    found = link({"p/__init__.py": "from .a import made\n", "p/a.py": "register(globals())\n"})
    assert symbol(found, "p.a.made").opaque == "no statement of p.a binds it"
    assert shown(found, "p") == {"made": "p.a.made"}


def test_a_symbol_has_one_identity() -> None:
    found = link(
        {
            "p/__init__.py": "from .a import f\nfrom .b import g\n",
            "p/a.py": "def f(): pass\n",
            "p/b.py": "from .a import f as g\n__all__ = ['g']\n",
        }
    )
    assert ids(found) == ["p.a.f"]
    assert symbol(found, "p.a.f").aliases == ("p.b.g", "p.f", "p.g")


def test_names_that_a_module_gives_on_demand() -> None:
    files = {
        "p/__init__.py": "from .a import *\nfrom .a import __all__\n",
        "p/a.py": "__all__ = ['f', 'late']\ndef f(): pass\ndef __getattr__(name): return table[name]\n",
    }
    found = link(files)
    assert symbol(found, "p.a.late").opaque == "no statement of p.a binds it"
    assert symbol(found, "p.a.late").aliases == ("p.late",)
    assert shown(found, "p") == {"f": "p.a.f", "late": "p.a.late"}


def test_guarded_import_of_an_extension() -> None:
    found = link(
        {"p/__init__.py": "try:\n    from . import _C\nexcept ImportError:\n    _C = None\ndef f(): return _C.g()\n"}
    )
    assert ids(found) == ["p.f"]
    assert found.opaque == ("p/__init__.py:2: p._C is imported but is in no file; its names are left out",)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\nx = x.real\n",
        "x = x.y\n",
        "a = b\nb = a\n",
        "from . import c\nx = c.x\n",
        "x = y.x\ny = x.y\n",
        "x = x\n",
    ],
)
def test_alias_that_leads_back_to_itself(source: str) -> None:
    """It ends, and the names are there."""
    files = {"p/__init__.py": source + "def f(): return x.y.z, a.b\n", "p/c.py": "from . import x\nx = x\n"}
    found = link(files)
    assert "p.f" in ids(found)


def test_members_for_type_checkers_alone() -> None:
    found = link(
        {
            "p/__init__.py": "class C:\n    if TYPE_CHECKING:\n        def m(self): pass\n        x: int = 1\n    def n(self): pass\n"
        }
    )
    assert ids(found) == ["p.C", "p.C.n"]
