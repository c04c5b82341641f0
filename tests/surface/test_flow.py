"""Which arguments a kernel may write: one case a way of writing, aliasing, calling or losing sight of a buffer."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tilelang_tree import Tree, kernel_line

from porter.surface.tilelang_access import access_of, foreign_reads, is_dtype, is_foreign

IMPORTS = "import functools\nimport tilelang\nimport torch\nfrom tilelang.ascend import language as T\nfrom tilelang.ascend.language import simd as S\n\n"


def kernel(body: str, before: str = "", module: str = "") -> str:
    """A kernel of x, y, z (tensors) and n (a number) with that body: which arguments it may write."""
    source = (
        f"{IMPORTS}{textwrap.dedent(module)}\n@tilelang.jit\ndef make(width, flag):\n{textwrap.indent(textwrap.dedent(before), '    ')}\n    @T.prim_func\n"
        "    def kernel(x: T.Tensor((4,), T.int8), y: T.Tensor((4,), T.int8), z: T.Tensor((4,), T.int8), n: T.int32):\n"
        f"        with T.Kernel(1) as pid:\n            ub = T.alloc_shared((4,), T.int8)\n{textwrap.indent(textwrap.dedent(body), ' ' * 12)}\n    return kernel\n"
    )
    contract = Tree.of(sample=source).contract("sample", "make")
    mark = {True: "", None: "?"}
    return " ".join(a.name + mark[a.written] for a in contract.kernels[0].arguments if a.written is not False)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("ub[0] = x[0] + n", ""),
        # stores
        ("x[0] = 1", "x"),
        ("x[0] += y[0]", "x"),
        ("x[0], y[1] = 1, 2", "x y"),
        ("x[0:2] = y[0:2]", "x"),
        ("x[y[0]] = 1", "x"),
        ("x[0]: T.int8 = 1", "x"),
        (
            "for i in T.serial(4):\n    while n:\n        if n:\n            pass\n        else:\n            x[i] = 1",
            "x",
        ),
        ("try:\n    x[0] = 1\nfinally:\n    y[0] = 1", "x y"),
        ("match n:\n    case 1:\n        x[0] = 1", "x"),
        # operations
        ("T.copy(x, y)", "y"),
        ("T.copy(x[0], y[0])", "y"),
        ("T.copy(src=x, dst=y[0:4])", "y"),
        ("T.copy(x[0], y[0] if flag else z[0])", "y z"),
        ("T.async_copy(x, ub)", ""),
        ("T.fill(x, 0)", "x"),
        ("T.clear(x)", "x"),
        ("T.reduce_sum(x, y, dim=0)", "y"),
        ("T.reduce_max(x, out=y)", "y"),
        ("T.gemm(x, y, z)", "z"),
        ("T.gemm(x, y, ub)", ""),
        ("T.atomic_add(x[0], y[0])", "x"),
        ("old = T.atomic_max(x[n], 1, return_prev=True)", "x"),
        ("T.atomic_load(x[0])", ""),
        ("T.cumsum(x, y)", "y"),
        ("T.cumsum(x)", "x"),
        ("T.reducer_update(x[0], y[0])", "x"),
        ("T.finalize_reducer(x, y)", "y"),
        ("T.transpose(x, y)", "y"),
        ("S.vsts(x[0], S.vld(y[0]))", "x"),
        ("S.vsts(x[0] if flag else y[0], S.vld(z[0]))", "x y"),
        ("T.simd.vscatter(S.vld(x[0]), y[0], S.vci(0, T.int16))", "y"),
        ("S.vmula(x[0], y[0], z[0])", "x"),
        ("T.tile.add(x, y, z)", "x"),
        ("T.evaluate(T.atomic_add(x[0], 1))", "x"),
        ("T.ptx_cp_async(T.access_ptr(x[0], 'w', 4), T.access_ptr(y[0], 'r', 4), 4)", "x"),
        ("T.region(x, 'rw', 4)", "x"),
        ("x.access_ptr('r')", ""),
        ("x.access_ptr('rw')", "x"),
        ("x.access_ptr(mode)", "x"),
        ("T.tvm_access_ptr(T.type_annotation(T.int8), x, 0, 4, 2)", "x"),
        ("T.buffer_store(x, 1, [0])", "x"),
        ("T.annotate_layout({x: layout})", ""),
        ("T.print(x)", ""),
        ("T.device_assert(x[0] == 0)", ""),
        # aliases
        ("q = x\nq[0] = 1", "x"),
        ("q: object = x\nq[0] = 1", "x"),
        ("q = p = x\np[0] = 1", "x"),
        ("q = T.view(x, (2, 2), T.int8)\nq[0, 0] = 1", "x"),
        ("q = T.reshape(x, [2, 2])\nT.copy(y, q)", "x"),
        ("q = T.Tensor((2,), T.int16, x.data)\nq[0] = 1", "x"),
        ("q = T.Tensor((2,), T.int16, data=x.data)\nq[0] = 1", "x"),
        ("q = T.make_tensor(x.data, (4,), T.int8)\nq[0] = 1", "x"),
        ("q = x if flag else y\nq[0] = 1", "x y"),
        ("q = ub if flag else y\nq[0] = 1", "y"),
        ("q = x or y\nq[0] = 1", "x y"),
        ("if flag:\n    q = x\nelse:\n    q = ub\nq[0] = 1", "x"),
        ("q, p = x, y\np[0] = 1", "y"),
        ("(q, p), r = (x, y), z\np[0] = 1", "y"),
        ("q, *p = x, y, z\np[0][0] = 1", "x y z"),
        ("pair = (x, y)\npair[1][0] = 1", "y"),
        ("pair = (x, y)\npair[-1][0] = 1", "y"),
        ("pair = [x, y]\npair[n][0] = 1", "x y"),
        ("table = {'a': x}\ntable['a'][0] = 1", "x"),
        ("table = {x: 2}\ntable[y] = 3", ""),
        ("table = {}\ntable['a'] = x\ntable['a'][0] = 1", "x"),
        ("bufs = []\nbufs.append(x)\nfor q in bufs:\n    q[0] = 1", "x"),
        ("bufs = [x]\nbufs += [y]\nbufs[n][0] = 1", "x y"),
        ("for q in (x, y):\n    T.copy(ub, q)", "x y"),
        ("for q, p in zip((x,), (y,)):\n    T.copy(q, p)", "y"),
        ("for i, q in enumerate([x]):\n    q[i] = 1", "x"),
        ("bufs = [q for q in (x, y)]\nbufs[0][0] = 1", "x y"),
        ("if (q := x) is not None:\n    q[0] = 1", "x"),
        ("q = x[0:2]\nT.copy(ub, q)", "x"),
        ("q = x\nq = q\nfor i in T.serial(2):\n    q = q[0:2]\nq[0] = 1", "x"),
        ("q = x[0] + y[0]\nq = q * 2\nub[0] = q", ""),
        ("n2 = x.shape[0]\nub[n2] = 1", ""),
        ("q = getattr(x, 'data')\nT.make_tensor(q, (4,))[0] = 1", "x"),
        # operations under another name
        ("add = T.atomic_add\nadd(x[0], 1)", "x"),
        ("move = T.copy if flag else T.async_copy\nmove(x, y)", "y"),
        ("getattr(T, 'atomic_add')(x[0], 1)", "x"),
    ],
)
def test_ways_of_writing(body: str, written: str) -> None:
    assert kernel(body) == written


MACROS = """
    @T.macro
    def store(dst, value, row=0):
        dst[row] = value

    @T.macro
    def move(src: T.Buffer, dst: T.Buffer, *, both: bool = False):
        store(dst, src[0])
        if both:
            store(src, dst[0])

    @T.macro
    def ref(dst: T.Ref, value):
        dst = value

    @T.macro
    def add_ref(dst: T.Ref):
        dst += 1

    @T.macro
    def local(value):
        value = value + 1
        return value

    @T.macro
    def flat(buf):
        return T.reshape(buf, (4,))

    @T.macro
    def split(buf, other):
        return T.view(buf, (2, 2)), other

    @T.macro
    def apply(action, *operands, **options):
        action(*operands)

    @T.macro
    def even(buf, n):
        if n:
            odd(buf, n - 1)

    @T.macro
    def odd(buf, n):
        buf[0] = 1
        even(buf, n - 1)

    def plain(buf):
        T.fill(buf, 0)

    def make_store(target, negate=False):
        @T.macro
        def inner(value):
            target[0] = value
        return inner

    def make_pair():
        @T.macro
        def first(a, b):
            a[0] = 1
        @T.macro
        def second(a, b):
            b[0] = 1
        return first, second

    def choose(kind):
        first, second = make_pair()
        return first if kind else second
"""


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("store(x, 1)", "x"),
        ("store(value=1, dst=x)", "x"),
        ("store(ub, x[0])", ""),
        ("move(x, y)", "y"),
        ("move(dst=x, src=y)", "x"),
        ("move(x, y, both=True)", "x y"),
        ("move(x, y, both=False)", "y"),
        ("move(x, y, both=flag)", "x y"),
        ("ref(x[0], 1)", "x"),
        ("add_ref(x[n])", "x"),
        ("local(x[0])", ""),
        ("flat(x)[0] = 1", "x"),
        ("q = flat(x)\nT.copy(y, q)", "x"),
        ("a, b = split(x, y)\nb[0] = 1", "y"),
        ("a, b = split(x, y)\na[0, 0] = 1", "x"),
        ("split(x, y)[0][0] = 1", "x"),
        ("pair = split(x, y)\npair[n][0] = 1", "x y"),
        ("apply(store, x, 1)", "x"),
        ("apply(T.copy, x, y)", "x y"),
        ("even(x, 3)", "x"),
        ("plain(x)", "x"),
        ("make_store(x)(1)", "x"),
        ("put = make_store(x)\nput(y[0])", "x"),
        ("put = make_store(target=y, negate=True)\nput(1)", "y"),
        ("first, second = make_pair()\nsecond(x, y)", "y"),
        ("make_pair()[0](x, y)", "x"),
        ("choose(flag)(x, y)", "x y"),
        ("functools.partial(store, x)(1)", "x"),
        ("put = functools.partial(move, x)\nput(y)", "y"),
        ("args = (x, y)\nmove(*args)", "y"),
        ("args = [x]\nargs.append(y)\nmove(*args)", "x y"),
        ("store(**{'dst': x})", "x"),
        ("q = store\nq(x, 1)", "x"),
        ("(store if flag else plain)(x)", "x"),
        ("(lambda buf: store(buf, 1))(x)", "x"),
        ("for put in (store, plain):\n    put(x)", "x"),
        ("def late():\n    put(x)\nfor i in range(2):\n    late()\n    put = make_store(y) if i else store", "x y"),
    ],
)
def test_macros_helpers_and_builders(body: str, written: str) -> None:
    assert kernel(body, module=MACROS) == written


@pytest.mark.parametrize(
    ("before", "body", "written"),
    [
        ("@T.macro\ndef put(buf):\n    buf[0] = width", "put(x)", "x"),
        ("@T.macro\ndef put(buf=None):\n    buf[0] = width", "put(buf=x)", "x"),
        ("def helper(buf):\n    @T.macro\n    def put():\n        buf[0] = 1\n    return put", "helper(x)()", "x"),
        ("shared = []", "@T.macro\ndef put():\n    x[0] = 1\nput()", "x"),
        ("", "q = T.view(x, (2,))\n@T.macro\ndef put(x):\n    q[0] = x[0]\nput(y)", "x"),
        ("", "def outer():\n    q = y\n    def inner():\n        q[0] = 1\n    return inner\nouter()()", "y"),
        ("", "q = y\ndef swap():\n    nonlocal q\n    q = x\nswap()\nq[0] = 1", "x y"),
        ("", "def put(buf, target=x):\n    target[0] = buf[0]\nput(y)", "x"),
        ("", "def never(buf):\n    buf[0] = 1", ""),
        ("from helpers import unrelated", "x[0] = 1", "x"),
    ],
)
def test_what_nested_functions_see(before: str, body: str, written: str) -> None:
    assert kernel(body, before) == written


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("T.call_extern('int32', 'mystery', T.address_of(x[0]))", "x?"),
        ("T.call_extern('int32', 'mystery', x.data, y[0])", "x?"),
        ("T.call_extern('int32', 'mystery', T.access_ptr(x[0], 'r'), T.access_ptr(y[0], 'w'))", "y"),
        ("T.call_extern('int32', 'tk_prefetch_l2', T.address_of(x[0]))", ""),
        ("v = x[n]\nT.call_extern('float32', '__expf', v)\nT.call_extern('int32', 'printf', v)", ""),
        ("T.call_pure_extern('float32', 'mystery', x.data)", ""),
        ("T.an_operation_of_tomorrow(x, y[0])", "x? y?"),
        ("getattr(T, name)(x[0])", "x?"),
        ("unheard_of(x, ub)", "x?"),
        ("somewhere.else_(y[0])", "y?"),
        ("width(x)", ""),
        ("self.store(x)", "x?"),
        ("thing = Thing()\nthing.store(x)", "x?"),
        ("class Local:\n    pass\nLocal(x)", "x?"),
        ("x[0] = 1\nunheard_of(x)", "x"),
        ("unheard_of(n)", ""),
        ("len((x, y))\nprint(x)\nmax(x[0], y[0])\nraise ValueError(x)", ""),
    ],
)
def test_what_cannot_be_followed(body: str, written: str) -> None:
    assert kernel(body) == written


def test_what_cannot_be_followed_is_named_with_its_line() -> None:
    source = (
        f"{IMPORTS}@tilelang.jit\ndef make(n):\n    @T.prim_func\n    def kernel(x: T.Tensor((4,), T.int8), y: T.Tensor((4,), T.int8)):\n"
        "        unheard_of(x)\n        T.call_extern('int32', 'mystery', T.address_of(y[0]))\n        T.tomorrow(x)\n    return kernel\n"
    )
    assert set(Tree.of(sample=source).contract("sample", "make").opaque) == {
        "line 11: a call of unheard_of is not followed: x",
        "line 12: T.call_extern(int32, mystery) is not followed: y",
        "line 13: T.tomorrow is not followed: x",
    }


@pytest.mark.parametrize(
    ("annotation", "body", "written"),
    [
        ("T.Tensor((n,), T.ptr)", "T.make_tensor(x[0], (4,), T.int8)[0] = 1", None),
        ("T.Tensor[(n,), T.ptr]", "pass", None),
        ("T.ptr", "pass", None),
        ("T.handle", "q = T.match_buffer(x, (4,), 'int8')\nq[0] = 1", True),
        ("T.int32", "unheard_of(x)", False),
        ("T.Tensor((n,), T.int8)", "pass", False),
    ],
)
def test_addresses_and_numbers(annotation: str, body: str, written: bool | None) -> None:
    source = f"{IMPORTS}@tilelang.jit\ndef make(n):\n    @T.prim_func\n    def kernel(x: {annotation}):\n{textwrap.indent(body, ' ' * 8)}\n    return kernel\n"
    assert Tree.of(sample=source).contract("sample", "make").kernels[0].arguments[0].written is written


def test_macros_of_other_modules() -> None:
    tree = Tree.of(
        pkg__low=f"{IMPORTS}@T.macro\ndef put(buf, value):\n    buf[0] = value\n",
        pkg__builders=f"{IMPORTS}from .low import put as store\n\ndef make_put(size):\n    @T.macro\n    def inner(buf):\n        store(buf, size)\n    return inner\n",
        pkg__stars="from .builders import *\nfrom .low import *\n",
        pkg__kernels=f"{IMPORTS}from . import low\nfrom .stars import make_put, put as direct\n\n@tilelang.jit\ndef make(n):\n    from pkg.builders import make_put as late\n    impl = make_put(n)\n    @T.prim_func\n"
        "    def kernel(a: T.Tensor((4,), T.int8), b: T.Tensor((4,), T.int8), c: T.Tensor((4,), T.int8), d: T.Tensor((4,), T.int8), e: T.Tensor((4,), T.int8)):\n"
        "        impl(a)\n        direct(b, 1)\n        low.put(c, e[0])\n        late(n)(d)\n    return kernel\n",
    )  # fmt: skip
    assert kernel_line(tree.contract("pkg.kernels", "make")) == "prim_func kernel(a*, b*, c*, d*, e)"


def test_a_helper_of_a_module_without_tilelang_writes_nothing() -> None:
    tree = Tree.of(
        utils="def align(x, y):\n    return x + y\n",
        kernels=f"{IMPORTS}from utils import align\n\n@tilelang.jit\ndef make(n):\n    @T.prim_func\n    def kernel(x: T.Tensor((4,), T.int8)):\n        ub[align(x[0], 4)] = 1\n    return kernel\n",
    )
    contract = tree.contract("kernels", "make")
    assert (kernel_line(contract), contract.opaque) == ("prim_func kernel(x)", ())


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("y.copy_(x)", "y*"),
        ("y[...] = x", "y*"),
        ("y[0].add_(x)", "y*"),
        ("torch.add(x, 1, out=y)", "y*"),
        ("torch.nn.init.zeros_(y)", "y*"),
        ("y.view(-1).fill_(0)", "y*"),
        ("rows = y.reshape(4, 1).transpose(0, 1)\nrows.zero_()", "y*"),
        ("x.index_select(0, y, out=y)", "y*"),
        ("y.index_copy_(0, x, x)", "y*"),
        ("y = y + x\ny.sum()", "y"),
        ("torch.sum(y)\ny.max()\nx.eq(y)", "y"),
        ("helper(y)", "y?"),
    ],
)
def test_closures_in_torch(body: str, written: str) -> None:
    source = (
        f"import torch\n\ndef make_tl(n):\n    def kernel(x, y):\n{textwrap.indent(body, ' ' * 8)}\n    return kernel\n"
    )
    assert kernel_line(Tree.of(sample=source).contract("sample", "make_tl")) == f"closure kernel(x, {written})"


def test_recursion_and_cycles_end() -> None:
    body = "a = x\nb = a\na = b[0:1]\na = (a, b)[n]\nb = [a, *b]\nfor a in b:\n    a, b = b, a\na[0] = 1"
    assert kernel(body) == "x"
    nested = "q = x\n" + "".join(f"q = (q, [q, q[0:{i}]], {{'k': q}})[n]\n" for i in range(30)) + "q[0] = 1"
    assert kernel(nested) == "x"


@pytest.mark.parametrize(
    ("operation", "written", "alias"),
    [
        ("copy", ("dst",), None),
        ("simd.vsts", ("addr",), None),
        ("view", (), "src"),
        ("tile.exp", ("dst",), None),
        ("simd.vadd", (), None),
        ("int32", (), None),
    ],
)
def test_the_table(operation: str, written: tuple[str, ...], alias: str | None) -> None:
    access = access_of(operation)
    assert access is not None
    assert tuple(access.parameters[index] for index in access.written) == written
    assert (access.parameters[access.alias] if access.alias >= 0 else None) == alias


def test_the_edges_of_the_table() -> None:
    assert access_of("something_new") is None and access_of("copyx") is None
    assert (
        is_foreign("call_extern")
        and is_foreign("tvm_call_packed")
        and not is_foreign("call_pure_extern")
        and not is_foreign("copy")
    )
    assert (
        foreign_reads("l2_Prefetch")
        and foreign_reads("__expf")
        and not foreign_reads("__stcs")
        and not foreign_reads("memcpy")
    )
    assert [
        is_dtype(name) for name in ("float32", "float4_e2m1fnx2", "uint8x16", "bool", "ptr", "handle", "matrix")
    ] == [True, True, True, True, False, False, False]
