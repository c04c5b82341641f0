"""Digests move with meaning and with nothing else, on every Python."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import black
import libcst as cst
import pytest

from porter.surface.digest import digest_of, fingerprint
from porter.surface.sketch import similarity


def digest(source: str | bytes) -> str:
    return digest_of(cst.parse_module(source))


SAME = [
    ("white space", "x=f( a,b )", "x = f(a, b)"),
    ("comments", "x = 1  # one\n# two\n", "x = 1\n"),
    ("blank lines", "a = 1\n\n\n\nb = 2\n", "a = 1\nb = 2\n"),
    ("trailing comma", "f(a, b,)", "f(a, b)"),
    ("trailing comma in a literal", "x = [\n    1,\n    2,\n]", "x = [1, 2]"),
    ("joined lines", "x = a + \\\n    b", "x = a + b"),
    ("one line or two", "a = 1; b = 2", "a = 1\nb = 2"),
    ("suite on the line", "if a: b()", "if a:\n    b()"),
    ("parentheses", "x = ((a) + (b))", "x = a + b"),
    ("parentheses on a condition", "if (a): b()", "if a: b()"),
    ("parentheses in for", "for (i, j) in z: f()", "for i, j in z: f()"),
    ("parentheses in return", "def f():\n    return (a)", "def f():\n    return a"),
    ("parentheses in del", "del (a, b)", "del a, b"),
    ("parentheses in with", "with (a as b, c as d): f()", "with a as b, c as d: f()"),
    ("parentheses in an import", "from a import (b, c)", "from a import b, c"),
    ("parentheses in a subscript", "x[(a, b)]", "x[a, b]"),
    ("one element by comma", "x[a,]", "x[(a,)]"),
    ("bare step", "x[a:b:]", "x[a:b]"),
    ("quotes", "x = 'a'", 'x = "a"'),
    ("quotes in an f-string", "x = f'{a}b'", 'x = f"{a}b"'),
    ("quotes inside an f-string", "x = f\"{a['b']}\"", "x = f'{a[\"b\"]}'"),
    ("escapes", r"x = '\x41'", "x = 'A'"),
    ("string prefix", "x = u'a'", "x = 'a'"),
    ("raw", r"x = r'\d'", r"x = '\\d'"),
    ("adjacent strings", "x = 'a' 'b'", "x = 'ab'"),
    ("adjacent f-strings", "x = f'{a}' 'b' f'{c}'", "x = f'{a}b{c}'"),
    ("escaped braces", "x = f'{{{a}}}'", "x = '{' f'{a}' '}'"),
    ("number base", "x = 0xFF", "x = 255"),
    ("number case", "x = 0XfF", "x = 0xff"),
    ("underscores", "x = 1_000", "x = 1000"),
    ("float spelling", "x = 1E-3", "x = 0.001"),
    ("imaginary", "x = 1J", "x = 1j"),
    ("docstring", 'def f():\n    "says"\n    return 1', "def f():\n    return 1"),
    ("pass beside a docstring", 'class A:\n    "says"', "class A:\n    pass"),
    ("ellipsis is kept", "class A: ...", "class A:\n    ..."),
    ("indentation", "if a:\n  b()", "if a:\n        b()"),
    ("line ends", "a = 1\r\nb = 2\r\n", "a = 1\nb = 2\n"),
    ("no last line end", "a = 1", "a = 1\n"),
    ("decorator", "@ a . b\ndef f(): pass", "@a.b\ndef f(): pass"),
    ("star import", "from a import *", "from  a  import  *"),
    ("match", "match (a):\n    case {'b': c,}: d()", "match a:\n    case {'b': c}: d()"),
    ("lambda", "f = lambda x , y : x", "f = lambda x, y: x"),
    ("comparison", "a<b", "a < b"),
    ("walrus", "(a:=b)", "(a := b)"),
]


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_same(first: str, second: str) -> None:
    assert digest(first) == digest(second)


DIFFERENT = [
    ("operator", "a + b", "a - b"),
    ("order", "a + b", "b + a"),
    ("grouping", "a * (b + c)", "a * b + c"),
    ("grouping of equals", "a - (b - c)", "a - b - c"),
    ("number", "x = 1", "x = 2"),
    ("int and float", "x = 1", "x = 1.0"),
    ("boolean", "x = True", "x = False"),
    ("name", "x = a", "x = b"),
    ("attribute", "x.a", "x.b"),
    ("string", "x = 'a'", "x = 'b'"),
    ("bytes and text", "x = b'a'", "x = 'a'"),
    ("f-string and text", "x = f'{a}'", "x = '{a}'"),
    ("f-string text", "x = f'a{b}'", "x = f'{b}a'"),
    ("format spec", "x = f'{a:3}'", "x = f'{a:4}'"),
    ("conversion", "x = f'{a!r}'", "x = f'{a!s}'"),
    ("text of a debug expression", "x = f'{a+b=}'", "x = f'{a + b=}'"),
    ("comparison", "a < b", "a <= b"),
    ("is", "a is b", "a == b"),
    ("not in", "a in b", "a not in b"),
    ("and", "a and b", "a or b"),
    ("unary", "-a", "+a"),
    ("argument order", "f(a, b)", "f(b, a)"),
    ("keyword", "f(a=1)", "f(b=1)"),
    ("keyword and positional", "f(a)", "f(a=a)"),
    ("star", "f(a)", "f(*a)"),
    ("two stars", "f(*a)", "f(**a)"),
    ("tuple and parentheses", "x = (a,)", "x = (a)"),
    ("list and tuple", "x = [a]", "x = (a,)"),
    ("slice", "x[a:b]", "x[a, b]"),
    ("slice side", "x[:b]", "x[b:]"),
    ("step", "x[a:b:c]", "x[a:b]"),
    ("augmented", "a += b", "a -= b"),
    ("augmented and plain", "a += b", "a = b"),
    ("statement", "return_ = a", "del a"),
    ("branch", "if a:\n    b()\n    c()", "if a:\n    b()\nc()"),
    ("else", "if a: b()\nelse: c()", "if a: b()\nc()"),
    ("for else", "for a in b:\n    c()\nelse:\n    d()", "for a in b:\n    c()\nd()"),
    ("async", "async def f(): pass", "def f(): pass"),
    ("decorator", "@a\ndef f(): pass", "def f(): pass"),
    ("default", "def f(a=1): pass", "def f(a=2): pass"),
    ("annotation", "def f(a: int): pass", "def f(a: str): pass"),
    ("positional only", "def f(a, /): pass", "def f(a): pass"),
    ("keyword only", "def f(*, a): pass", "def f(a): pass"),
    ("return", "def f(): return a", "def f(): a"),
    ("yield from", "def f(): yield from a", "def f(): yield a"),
    ("raise from", "raise a from b", "raise a"),
    ("global", "def f():\n    global a\n    a = 1", "def f():\n    a = 1"),
    ("except type", "try: a()\nexcept B: c()", "try: a()\nexcept D: c()"),
    ("except star", "try: a()\nexcept* B: c()", "try: a()\nexcept B: c()"),
    ("import level", "from . import a", "from .. import a"),
    ("import name", "from a import b as c", "from a import c"),
    ("match pattern", "match a:\n    case [b]: c()", "match a:\n    case {'b': b}: c()"),
    ("comprehension", "[a for a in b]", "{a for a in b}"),
    ("comprehension condition", "[a for a in b if a]", "[a for a in b]"),
    ("await", "async def f(): await a", "async def f(): a"),
    ("lambda", "lambda a: b", "lambda b: b"),
    ("ellipsis and nothing", "def f():\n    ...\n    return a", "def f():\n    x\n    return a"),
    ("strings across statements", "f('a', 'b')", "f('ab')"),
    ("called docstring look-alike", "def f():\n    f'{a()}'", "def f():\n    pass"),
]


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT])
def test_different(first: str, second: str) -> None:
    assert digest(first) != digest(second)


def test_skip_and_salt() -> None:
    module = cst.parse_module("def f():\n    a()\n    b()\n")
    function = module.body[0]
    assert isinstance(function, cst.FunctionDef)
    line = function.body.body[0]
    assert isinstance(line, cst.SimpleStatementLine)
    assert digest_of(function, skip=[line.body[0]]) != digest_of(function)
    assert digest_of(function, skip=[line.body[0]]) == digest_of(cst.parse_module("def f():\n    b()\n").body[0])
    assert digest_of(function, salt="x") != digest_of(function)
    assert digest_of(function, function) != digest_of(function)


# A source that is read differently by the tokenizers, escape rules or Unicode tables of different Pythons.
TRICKY = r'''
import re as _re
TABLE = {"k": 0x7fff_FFFF, 'e': 1E-06, "j": 2J, **OTHER}
WORDS = "\d\N{EM DASH}é⿼\ud800" 'tail' r"\n", b"\x00\\" b'"'
def run[T: (int, str)](x: T, /, y=(1, 2), *args: *tuple[int], z: "list[T]" = [], **kw) -> T:
    """Docstring.""" "joined"
    with (open(f"{x!r:>{y[0]}}" f'{{{kw["a"]}}}' "\t") as handle, lock):
        total = [*args, *(i async for i in z)][::2, ..., a:b:]
    match x:
        case {"a": [1, *rest], **others} if (n := len(rest)) > 1_0: return not (x in y)
        case Point(x=0) | None as p: pass
    try: yield (await x) if x else -y ** ~2 @ z
    except* (A, B) as group: raise group from None
    else: lambda *a, k=1, **w: (yield)
    return f"{x = }" f"{x+1=}" + rf"\d{x}"
type Alias[K] = dict[K, int]
'''
TRICKY_DIGEST = "efd05949303fcabc22fed15f1c163e56"


def test_frozen() -> None:
    """The same on every Python that runs porter: the value was made on 3.12 and is the same on 3.13."""
    assert digest(TRICKY) == TRICKY_DIGEST


# -- real files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(source_root: Callable[[str], Path]) -> list[tuple[str, str]]:
    files = sorted((source_root("tile_kernels") / "tile_kernels").rglob("*.py"))
    assert len(files) == 140
    return [(file.as_posix(), file.read_text("utf-8")) for file in files[::7]]


def test_formatting_moves_nothing(sample: list[tuple[str, str]]) -> None:
    mode = black.Mode(line_length=79)
    changed = 0
    for name, text in sample:
        formatted = black.format_str(text, mode=mode)
        changed += formatted != text
        assert digest(formatted) == digest(text), name
    assert changed > len(sample) // 2


def test_comments_and_blank_lines_move_nothing(sample: list[tuple[str, str]]) -> None:
    for name, text in sample:
        lines = text.split("\n")
        # Only at lines that start a top-level statement: inside strings the text would be part of a value.
        starts = [
            index
            for index, line in enumerate(lines)
            if re.match(r"(def|class|@|import|from) ?\w", line) and "'''" not in line
        ]
        for index in reversed(starts):
            if index and re.match(r"@|\)", lines[index - 1]) is None:
                lines[index:index] = ["", "# a comment", ""]
        assert digest("\n".join(lines)) == digest(text), name


class _Parentheses(cst.CSTTransformer):
    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BinaryOperation:
        return updated_node.with_changes(
            lpar=[cst.LeftParen(), *updated_node.lpar], rpar=[*updated_node.rpar, cst.RightParen()]
        )

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        value = updated_node.value
        if value.startswith("'") and not value.startswith("'''") and '"' not in value and "\\" not in value:
            return updated_node.with_changes(value='"' + value[1:-1] + '"')
        return updated_node


def test_parentheses_and_quotes_move_nothing(sample: list[tuple[str, str]]) -> None:
    changed = 0
    for name, text in sample:
        module = cst.parse_module(text)
        other = module.visit(_Parentheses()).code
        changed += other != text
        assert digest(other) == digest(text), name
    assert changed > len(sample) // 2


_SWAPS: dict[type[cst.CSTNode], cst.CSTNode] = {
    cst.Add: cst.Subtract(),
    cst.Subtract: cst.Add(),
    cst.Multiply: cst.FloorDivide(),
    cst.FloorDivide: cst.Multiply(),
    cst.Divide: cst.Multiply(),
    cst.LessThan: cst.LessThanEqual(),
    cst.LessThanEqual: cst.LessThan(),
    cst.GreaterThan: cst.GreaterThanEqual(),
    cst.Equal: cst.NotEqual(),
    cst.NotEqual: cst.Equal(),
    cst.And: cst.Or(),
    cst.Or: cst.And(),
}


class _Mutator(cst.CSTTransformer):
    """Changes the ``wanted``-th place that can be changed; ``count`` counts them."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = 0

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        changed = self._changed(updated_node)
        if changed is None:
            return updated_node
        self.count += 1
        return changed if self.count - 1 == self.wanted else updated_node

    def _changed(self, node: cst.CSTNode) -> cst.CSTNode | None:
        if type(node) in _SWAPS:
            return _SWAPS[type(node)]
        if isinstance(node, cst.Integer):
            return node.with_changes(value=str(int(node.value, 0) + 1))
        if isinstance(node, cst.Name):
            swapped = {"True": "False", "False": "True"}.get(node.value, node.value + "_other")
            return node.with_changes(value=swapped)
        return None


def _mutants(text: str, count: int, seed: int) -> Iterator[str]:
    module = cst.parse_module(text)
    counter = _Mutator(-1)
    module.visit(counter)
    generator = random.Random(seed)
    for wanted in generator.sample(range(counter.count), min(count, counter.count)):
        yield module.visit(_Mutator(wanted)).code


def test_mutants_move_it(sample: list[tuple[str, str]]) -> None:
    """One operator, number, boolean or name changed: every one of some 80 is seen."""
    tried = 0
    for seed, (name, text) in enumerate(sample):
        if len(text) > 12_000:
            continue
        original = digest(text)
        for mutant in _mutants(text, 6, seed):
            tried += 1
            assert digest(mutant) != original, name
    assert tried > 60


def test_similarity() -> None:
    body = "def f():\n" + "".join(f"    x{i} = g{i}(a, b + {i})\n" for i in range(30))
    close = body.replace("g7(", "h7(")
    other = "def f():\n" + "".join(f"    while y[{i}]: z.append({i} * q)\n" for i in range(30))
    sketches = [fingerprint(cst.parse_module(text))[1] for text in (body, close, other)]
    assert similarity(sketches[0], sketches[0]) == 1.0
    assert similarity(sketches[0], sketches[1]) > 0.6
    assert similarity(sketches[0], sketches[2]) < 0.2
    assert similarity("", sketches[0]) == 0.0
