"""What one file says: each rule on a source of a few lines."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from porter.errors import UnreadableFileError
from porter.surface.cache import decode, encode
from porter.surface.lines import Lines
from porter.surface.model import (
    Argument,
    ClassFacts,
    ConstantFacts,
    Decorator,
    FunctionFacts,
    ModuleFacts,
    ParameterKind,
)
from porter.surface.python import extract


def facts(source: str) -> ModuleFacts:
    return extract("m.py", textwrap.dedent(source).encode())


def function(source: str) -> FunctionFacts:
    return facts(source).functions[-1]


def klass(source: str) -> ClassFacts:
    return facts(source).classes[-1]


def constants(source: str) -> dict[str, str]:
    return {fact.name: fact.value for fact in facts(source).constants}


# -- signatures ------------------------------------------------------------------------------------------------------


def test_parameters() -> None:
    found = function("def f(a, /, b: int, c='x', *args: str, d, e=None, **kw) -> dict[str, int]: pass").signature
    assert [(p.name, p.kind, p.default, p.annotation) for p in found.parameters] == [
        ("a", ParameterKind.POSITIONAL_ONLY, None, None),
        ("b", ParameterKind.POSITIONAL, None, "int"),
        ("c", ParameterKind.POSITIONAL, '"x"', None),
        ("args", ParameterKind.VAR_POSITIONAL, None, "str"),
        ("d", ParameterKind.KEYWORD_ONLY, None, None),
        ("e", ParameterKind.KEYWORD_ONLY, "None", None),
        ("kw", ParameterKind.VAR_KEYWORD, None, None),
    ]
    assert found.returns == "dict[str, int]"


@pytest.mark.parametrize(
    "kind", ["def f(*, a): pass", "def f(a, *, b): pass", "def f(*args, b): pass", "def f(a, /): pass", "def f(): pass"]
)
def test_parameter_kinds_agree_with_python(kind: str) -> None:
    args = ast.parse(kind).body[0].args  # type: ignore[attr-defined]
    found = function(kind).signature.parameters
    assert [p.name for p in found if p.kind is ParameterKind.KEYWORD_ONLY] == [one.arg for one in args.kwonlyargs]
    assert [p.name for p in found if p.kind is ParameterKind.POSITIONAL_ONLY] == [one.arg for one in args.posonlyargs]
    assert [p.name for p in found if p.kind is ParameterKind.POSITIONAL] == [one.arg for one in args.args]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("'a'", '"a"'),
        ("'say \"hi\"'", "'say \"hi\"'"),
        ("'it\\'s'", '"it\'s"'),
        ("( 1 )", "1"),
        ("0xFF", "255"),
        ("1E-6", "1e-6"),
        ("1_000.0", "1000.0"),
        ("-1", "-1"),
        ("( a,)", "(a,)"),
        ("(a,b)", "(a, b)"),
        ("[ ]", "[]"),
        ("{'k':1,**m}", '{"k": 1, **m}'),
        ("x [ 1:2 , : ]", "x[1:2, :]"),
        ("T.Tensor[(a,b),c]", "T.Tensor[(a, b), c]"),
        ("x[(a, b)]", "x[a, b]"),
        ("a if b else c", "a if b else c"),
        ("(a if b else c)if d else e", "(a if b else c) if d else e"),
        ("lambda x,*y,z=1:x", "lambda x, *y, z=1: x"),
        ("(a+b)*c", "(a + b) * c"),
        ("a+(b*c)", "a + b * c"),
        ("a-(b-c)", "a - (b - c)"),
        ("(-a)**b", "(-a) ** b"),
        ("-a**b", "-a ** b"),
        ("a**-b", "a ** -b"),
        ("(a**b)**c", "(a ** b) ** c"),
        ("not(a)", "not a"),
        ("a and(b or c)", "a and (b or c)"),
        ("(a<b)<c", "(a < b) < c"),
        ("a<b<c", "a < b < c"),
        ("f(*a,k=1,**b)", "f(*a, k=1, **b)"),
        ("f(x for x in y)", "f(x for x in y)"),
        ("[x for x,y in z if x if y]", "[x for x, y in z if x if y]"),
        ("{k:v for k,v in z}", "{k: v for k, v in z}"),
        ("f'{a}b'", 'f"{a}b"'),
        ("f'{a!r:>{w}}'", 'f"{a!r:>{w}}"'),
        ("'a' 'b'", '"ab"'),
        ("'é'", '"\\xe9"'),
        ("b'x'", 'b"x"'),
        ("...", "..."),
        ("(1).real", "(1).real"),
        ("a.b.c", "a.b.c"),
        ("int | None", "int | None"),
    ],
)
def test_default_text(written: str, canonical: str) -> None:
    found = function(f"def f(a={written}): pass").signature.parameters[0].default
    assert found == canonical
    assert ast.dump(ast.parse(found, mode="eval")) == ast.dump(ast.parse(written, mode="eval"))


def test_function_facts() -> None:
    found = function("""
        @outer.wrap(1, key='v', *rest)
        @bare
        async def f(x):
            return helper(x) + CONSTANT.attribute
        """)
    assert found.decorators == (
        Decorator("outer.wrap", (Argument("1"), Argument('"v"', "key"), Argument("*rest"))),
        Decorator("bare"),
    )
    assert found.is_async
    assert found.line == 4
    assert found.references == ("CONSTANT.attribute", "bare", "helper", "outer.wrap", "rest")


@pytest.mark.parametrize(
    ("body", "references"),
    [
        ("return a", ["a"]),
        ("a = 1; return a", []),
        ("return p", []),
        ("return f(p)", ["f"]),
        ("global a; a = b", ["b"]),
        ("global a; a = 1; return a", ["a"]),
        ("import numpy as np; return np.x", ["np.x"]),
        ("from . import other; return other.y", ["other.y"]),
        ("for i in a: b(i)", ["a", "b"]),
        ("with a as b: b.c()", ["a"]),
        ("try: a()\nexcept B as e: e.x", ["B", "a"]),
        ("return [x for x in a if x.b]", ["a"]),
        ("return [(y := x) for x in a] + [y]", ["a"]),
        ("return lambda x: x + a", ["a"]),
        ("def g(x, y=d): return x + p + a\nreturn g", ["a", "d"]),
        ("def g():\n    nonlocal q\n    q = 1\nq = 2", []),
        ("class K(B):\n    v = 1\n    def m(self): return v", ["B", "v"]),
        ("a.b.c = d", ["a.b.c", "d"]),
        ("a[b] = c", ["a", "b", "c"]),
        ("a += 1", []),
        ("del a", ["a"]),
        ("return f(key=1)", ["f"]),
        ("match p:\n    case K(x=1, y=[z, *r]): return z\n    case {'k': v, **o}: return v, o", ["K"]),
        ("return f'{a.b}{c:{d}}'", ["a.b", "c", "d"]),
        ("x: T = a", ["T", "a"]),
        ("return None, True", []),
        ("return g().x.y", ["g"]),
        ("return self.x", ["self.x"]),
    ],
)
def test_references(body: str, references: list[str]) -> None:
    source = "def f(p):\n" + textwrap.indent(body, "    ")
    found = [name for name in function(source).references if name != "f" or "return f(" in body]
    assert found == references


def test_method_references() -> None:
    found = klass("""
        class K:
            def m(this, x):
                def inner(): return this.b
                return this.a + x.c
            @staticmethod
            def s(this): return this.z
        """)
    assert found.methods[0].references == ("self.a", "self.b")
    assert found.methods[1].references == ("staticmethod",)


@pytest.mark.parametrize(("name", "real"), [("__x", "_Owner__x"), ("__x__", "__x__"), ("_x", "_x"), ("x", "x")])
def test_private_parameters_of_methods(name: str, real: str) -> None:
    found = klass(f"class _Owner:\n    def m(self, {name}): pass\n").methods[0].signature
    assert found.parameters[1].name == real
    assert function(f"def f({name}): pass").signature.parameters[0].name == name


def test_local_imports() -> None:
    found = function("""
        def f():
            import a.b
            import c.d as e
            from ..g import h as i
            from . import j
        """)
    assert found.local_imports == (("a", "a"), ("e", "c.d"), ("i", "..g.h"), ("j", ".j"))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("def f(a): return a", "def f(a, b=1): return a", True),
        ("def f(a: int): return a", "def f(a: str) -> int: return a", True),
        ("def f(a):\n    'doc'\n    return a", "def f(a): return a", True),
        ("def f(a): return a", "def f(a): return -a", False),
        ("@x\ndef f(a): return a", "def f(a): return a", False),
        ("@staticmethod\ndef f(a): return a", "def f(a): return a", True),
        ("async def f(a): return a", "def f(a): return a", False),
    ],
)
def test_function_digest(first: str, second: str, same: bool) -> None:
    assert (function(first).digest == function(second).digest) is same


# -- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = 1", {"a": "1"}),
        ("a = b = 1", {"a": "1", "b": "1"}),
        ("a, b = 1, 2", {"a": "1", "b": "2"}),
        ("a, (b, c) = 1, (2, 3)", {"a": "1", "b": "2", "c": "3"}),
        ("a, b = f()", {"a": "(f())[0]", "b": "(f())[1]"}),
        ("a, *b = f()", {"a": "f()", "b": "f()"}),
        ("a: int = 1", {"a": "1"}),
        ("a: int", {}),
        ("a = 1\na += 2", {"a": "1 + 2"}),
        ("a = [1]\na += [2]", {"a": "[1] + [2]"}),
        ("x = (a := 1)", {"a": "1", "x": "a := 1"}),
        ("if (a := f()): pass", {"a": "f()"}),
        ("for a in b: c = a", {"a": "b", "c": "a"}),
        ("with f() as a: b = 1", {"a": "f()", "b": "1"}),
        ("type A = int", {"A": "int"}),
        ("a.b = 1", {}),
        ("a[0] = 1", {}),
        ("if __name__ == '__main__': a = 1", {}),
        ("if x and __name__ == '__main__': a = 1", {}),
    ],
)
def test_constants(source: str, expected: dict[str, str]) -> None:
    assert constants(source) == expected


def test_constant_details() -> None:
    (fact,) = facts("\nTABLE: dict[str, int] = {'a': f(B)}\n").constants
    assert (fact.line, fact.annotation, fact.references) == (2, "dict[str, int]", ("B", "f"))


@pytest.mark.parametrize(
    "loose",
    [
        "A['k'] = 2",
        "A.update(b)",
        "A.b = 1",
        "for k in ks: A[k] = 1",
        "setattr(A, 'b', 1)",
        "if x: A.append(1)",
        "del A['k']",
        "A.b['c'] += 1",
    ],
)
@pytest.mark.parametrize("definition", ["A = {}", "def A(): pass", "class A: pass"])
def test_loose_statements_move_what_they_act_on(definition: str, loose: str) -> None:
    def digest(source: str) -> str:
        found = facts(source)
        every: list[FunctionFacts | ClassFacts | ConstantFacts] = [*found.functions, *found.classes, *found.constants]
        return next(fact.digest for fact in every if fact.name == "A")

    assert digest(f"{definition}\n{loose}") != digest(definition)
    assert digest(f"{definition}\n{loose}") == digest(f"{definition}\n# comment\n{loose}\n")


def test_order_and_deleted() -> None:
    found = facts("a = 1\nb = 2\na = 3\nc = 4\ndel b, c\nc = 5\n")
    assert found.order == ("a", "c")
    assert found.deleted == ("b",)


# -- imports and guards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a", [("a", "", "a", False)]),
        ("import a.b", [("a.b", "", "a", False)]),
        ("import a as b", [("a", "", "b", False)]),
        ("import a as a", [("a", "", "a", True)]),
        ("import a.b as c", [("a", "b", "c", False)]),
        ("from a import b, c as d", [("a", "b", "b", False), ("a", "c", "d", False)]),
        ("from a import b as b", [("a", "b", "b", True)]),
        ("from . import a", [(".", "a", "a", False)]),
        ("from ..a.b import c", [("..a.b", "c", "c", False)]),
        ("from a import *", [("a", "*", "", False)]),
    ],
)
def test_imports(source: str, expected: list[tuple[str, str, str, bool]]) -> None:
    assert [(fact.module, fact.name, fact.bound, fact.explicit) for fact in facts(source).imports] == expected


def test_guards() -> None:
    found = facts("""
        try:
            import a
        except ImportError:
            import b
        else:
            import c
        finally:
            import d
        if x > 1:
            import e
        elif y:
            import f
        else:
            import g
        if TYPE_CHECKING:
            import h
        else:
            import i
        if not t.TYPE_CHECKING:
            import j
        with z:
            import k
        if p:
            try:
                import l
            except E:
                pass
        """)
    assert {fact.bound: fact.guard for fact in found.imports} == {
        "a": "try",
        "b": "except",
        "c": "try",
        "d": "",
        "e": "if x > 1",
        "f": "else x > 1 / if y",
        "g": "else x > 1 / else y",
        "h": "TYPE_CHECKING",
        "i": "else TYPE_CHECKING",
        "j": "else TYPE_CHECKING",
        "k": "",
        "l": "if p / try",
    }


def test_definitions_under_guards() -> None:
    found = facts("try:\n    def f(): pass\nexcept E:\n    def f(a): pass\n")
    assert [(fact.name, fact.guard) for fact in found.functions] == [("f", "try"), ("f", "except")]


# -- __all__ ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "names", "text"),
    [
        ("a = 1", None, None),
        ("__all__ = ['a', \"b\"]", ("a", "b"), None),
        ("__all__ = ('a',)", ("a",), None),
        ("__all__: list[str] = ['a']", ("a",), None),
        ("__all__ = []", (), None),
        ("__all__ = ['a']\n__all__ += ['b']", None, '["a"] + ["b"]'),
        ("__all__ = ['a']\n__all__.extend(x.__all__)", None, '["a"] + (list(x.__all__))'),
        ("__all__ = ['a']\n__all__.append('b')", None, '["a"] + ["b"]'),
        ("__all__ = x.__all__ + ['a']", None, 'x.__all__ + ["a"]'),
        ("__all__ = [*x, 'a']", None, '[*x, "a"]'),
        ("__all__ = f()", None, "f()"),
        ("__all__ = ['a']\nfrom x import __all__", None, None),
    ],
)
def test_exports(source: str, names: tuple[str, ...] | None, text: str | None) -> None:
    found = facts(source)
    assert (found.exports, found.exports_text) == (names, text)


# -- classes ---------------------------------------------------------------------------------------------------------


def test_class() -> None:
    found = klass("""
        @dataclass(frozen=True)
        class K(Base, metaclass=Meta):
            'Doc.'
            a: int
            b: str = 'x'
            C = 3
            _d = 4
            class Inner:
                e = 5
            def __init__(self, x):
                self.f = x
                if x:
                    self.g, self.h = x
                for self.i in x: pass
                self.j.k = 1
                self.l: int = 2
            @property
            def p(self) -> int: return 1
            @p.setter
            def p(self, value): pass
            @classmethod
            def c(cls): pass
            if x:
                def guarded(self): pass
        """)
    assert found.bases == (Argument("Base"), Argument("Meta", "metaclass"))
    assert found.decorators == (Decorator("dataclass", (Argument("True", "frozen"),)),)
    assert [(a.name, a.value, a.annotation) for a in found.attributes] == [
        ("a", "", "int"),
        ("b", '"x"', "str"),
        ("C", "3", None),
        ("_d", "4", None),
    ]
    assert [inner.name for inner in found.classes] == ["Inner"]
    assert [(method.name, method.guard) for method in found.methods] == [
        ("__init__", ""),
        ("p", ""),
        ("p", ""),
        ("c", ""),
        ("guarded", "if x"),
    ]
    assert found.instance_attributes == ("f", "g", "h", "l")
    assert found.references == ("Base", "Meta", "dataclass", "x")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("class K: pass", "class K:\n    'doc'", True),
        ("class K(A): pass", "class K(B): pass", False),
        ("class K(A): pass", "class K(A, metaclass=M): pass", False),
        ("@a\nclass K: pass", "class K: pass", False),
        ("class K:\n    x = 1", "class K:\n    x = 2", True),  # an attribute has a digest of its own
        ("class K:\n    f()", "class K:\n    g()", False),
    ],
)
def test_class_digest(first: str, second: str, same: bool) -> None:
    assert (klass(first).digest == klass(second).digest) is same


# -- what is not understood ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "globals()['a'] = 1",
        "globals().update(a)",
        "vars()[a] = 1",
        "sys.modules[__name__] = a",
        "sys.modules[__name__].x = a",
        "sys.modules.update(a)",
        "exec('a = 1')",
        "for n in names: setattr(module, n, 1)",
        "setattr(a, name, 1)",
        "_init_api('x', __name__)",
        "def __getattr__(name): pass",
        "for n in a:\n    def f(): pass",
        "for n in a: import b",
        "class K:\n    import a",
        "match a:\n    case 1: b = 2",
        "__all__ = ['a']\nif x: __all__ += ['b']",
        "__all__ = ['a']\n__all__.remove('a')",
        "__path__.append(a)",
        "importlib.import_module('a')",
    ],
)
def test_opaque(source: str) -> None:
    found = facts("\n" + source)
    assert len(found.opaque) >= 1
    assert int(found.opaque[0].partition(":")[0]) >= 2


@pytest.mark.parametrize(
    "source",
    ["setattr(a, 'b', 1)", "f()", "logging.getLogger(__name__).x()", "a = logging.getLogger(__name__)", "a.b[c] = d"],
)
def test_not_opaque(source: str) -> None:
    assert facts(source).opaque == () or "getLogger" in source


def test_loose_references() -> None:
    found = facts("if PLATFORM.is_npu: pass\nregister(thing)\n")
    assert found.references == ("PLATFORM.is_npu", "register", "thing")


# -- lines and encoding ----------------------------------------------------------------------------------------------


LINES = '''\
# comment

@decorator(
    1,
)
# between
def first(
    a,
): pass


class K(  # why
    A,
):
    """Two
    lines."""

    x = """
    text
    """
    @property

    def m(self): return (
        1
    )
y = [
    1,
]; z = 2
import a; import b
'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines(newline: str) -> None:
    data = LINES.replace("\n", newline).encode()
    found = extract("m.py", data)
    assert found.functions[0].line == 7
    owner = found.classes[0]
    assert (owner.line, owner.attributes[0].line, owner.methods[0].line) == (12, 18, 23)
    assert {fact.name: fact.line for fact in found.constants} == {"y": 26, "z": 28}
    assert [fact.line for fact in found.imports] == [29, 29]


def test_lines_agree_with_libcst(source_root: Callable[[str], Path]) -> None:
    """One pass that counts newlines gives what libcst's own position provider gives."""
    for file in sorted((source_root("tile_kernels") / "tile_kernels").rglob("*.py"))[::20]:
        wrapper = MetadataWrapper(cst.parse_module(file.read_bytes()), unsafe_skip_copy=True)
        lines = Lines(wrapper.module)
        for node, place in wrapper.resolve(PositionProvider).items():
            if isinstance(node, (cst.BaseStatement, cst.BaseSmallStatement, cst.BaseExpression, cst.Decorator)):
                assert lines(node) == place.start.line, (file, node)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfa = 1\n",
        b"# -*- coding: latin-1 -*-\na = '\xe9'\n",
        b"a = 1\r\nb = 2",
        b"a = 1\n\x0cb = 2\n",
        b"",
        b"\n\n",
        b"if a:\n\tb = 1\n",
        b"type X[T = int] = list[T]\n",
        b"try: pass\nexcept A, B: pass\n",
        b"a = t'{b}'\n",
        b"def f[*Ts, **P](x: int): pass\n",
        b"a = f'{b[\"c\"]}'\n",
        b"a = '\\d'\n",
        b"x = () if 0 else(lambda:())\n",
        b"x = (a)if(b)else(c)\ny = [i for i in(a)if(not(b))]\nz = 'in(x)if(y)'\n",
    ],
)
def test_readable(data: bytes) -> None:
    found = extract("m.py", data)
    assert decode(encode(found)) == found


def test_spacing_that_libcst_does_not_take() -> None:
    close = facts("x = (a)if(b)else(c)\ny = 'in(x)if(y)'\n")
    wide = facts("x = (a) if (b) else (c)\ny = 'in(x)if(y)'\n")
    assert close == wide


def test_deep_nesting() -> None:
    chain = "def f(x):\n    if x == 0: return 0\n" + "".join(f"    elif x == {i}: return {i}\n" for i in range(500))
    found = extract("m.py", chain.encode())
    assert found.functions[0].name == "f"
    assert extract("m.py", ("x = " + " + ".join(["a"] * 500)).encode()).constants[0].references == ("a",)


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"x = 1\ndef f(:\n  pass\n", 3, ["expected", "column", "`pass`"]),
        (b"x = 1\ny = = 2\n", 2, ["expected", "`y = = 2`"]),
        (b"def f():\n    a\n  b\n", 1, ["dedent"]),
        (b"x = 1\n# \xff\n", 2, ["utf-8", "0xff"]),
        (b"# -*- coding: nonsense -*-\nx = 1\n", 1, ["unknown encoding"]),
        (b"x = 1\x00\n", 1, ["not"]),
        (b"x = 'a' b'b'\n", 1, ["concatenate"]),
        (b"x = '\\x4'\n", 1, ["unicode"]),
        (b"x = " + b"9" * 5000 + b"\n", 1, ["digits"]),
        (b"\nx = " + b"(" * 3000 + b"1" + b")" * 3000 + b"\n", 2, ["nest"]),
    ],
)
def test_unreadable(data: bytes, line: int, words: list[str]) -> None:
    with pytest.raises(UnreadableFileError) as caught:
        extract("pkg/m.py", data)
    assert caught.value.place == f"pkg/m.py:{line}"
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_brackets_in_strings_are_no_nesting() -> None:
    assert extract("m.py", ("x = '" + "(" * 500 + "'\n").encode()).constants[0].name == "x"


def test_nothing_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    extract("m.py", f"open({str(marker)!r}, 'w').write('x')\nraise SystemExit\n".encode())
    assert not marker.exists()


def test_constant_facts_are_plain_data() -> None:
    assert facts("a = 1").constants == (ConstantFacts("a", 1, "1", facts("a = 1").constants[0].digest),)
