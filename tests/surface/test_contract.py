"""Kernels as factories give them: one case a shape of factory, one case a spelling of a type."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tilelang_tree import Tree, kernel_line

from porter.surface.model import Contract, KernelArgument, TensorSpec

IMPORTS = "import tilelang\nfrom tilelang import language as T\nimport torch\n\n"


def contract(source: str, name: str = "make") -> Contract:
    return Tree.of(sample=IMPORTS + textwrap.dedent(source)).contract("sample", name)


def shape(source: str) -> str:
    return kernel_line(contract(source))


def test_one_prim_func() -> None:
    source = """
        @tilelang.jit
        def make(n: int):
            @T.prim_func
            def kernel(x: T.Tensor((n,), T.int8), y: T.Tensor((n,), T.int8), k: T.int32):
                T.copy(x, y)
            return kernel
    """
    assert shape(source) == "prim_func kernel(x, y*, k)"


@pytest.mark.parametrize(
    ("branches", "conditions"),
    [
        ("if n > 4:\n    return a\nreturn b", ["n > 4", "not (n > 4)"]),
        ("if n > 4:\n    return a\nelse:\n    return b", ["n > 4", "not (n > 4)"]),
        ("if n:\n    return a\nelif n > 4:\n    return b", ["n", "not n and n > 4"]),
        ("return a if n else b", ["n", "not n"]),
        ("assert n\nif n > 9:\n    raise ValueError\nreturn a", [""]),
        ("kernel = a if n else b\nreturn kernel", ["n", "not n"]),
        ("if n or m:\n    kernel = a\nelse:\n    kernel = b\nreturn kernel", ["n or m", "not (n or m)"]),
        (
            "if n:\n    if m or k:\n        return a\n    return b\nreturn None",
            ["n and (m or k)", "n and (not (m or k))"],
        ),
        ("match n:\n    case 1:\n        return a\n    case _:\n        return b", ["n matches 1", "n matches _"]),
        ("with guard():\n    return a", [""]),
        ("try:\n    return a\nexcept ValueError:\n    return b", ["", ""]),
        ("for m in (1, 2):\n    return a", [""]),
        ("return a, b", ["", ""]),
    ],
)
def test_several_prim_funcs(branches: str, conditions: list[str]) -> None:
    kernels = "".join(f"@T.prim_func\ndef {name}(x: T.Tensor((n,), T.int8)):\n    x[0] = 1\n" for name in "ab")
    source = f"@tilelang.jit\ndef make(n, m, k):\n{textwrap.indent(kernels + branches, '    ')}\n"
    found = contract(source)
    assert [kernel.condition for kernel in found.kernels if "given back" not in kernel.name][
        : len(conditions)
    ] == conditions
    assert all(kernel.arguments[0].written for kernel in found.kernels)


def test_the_same_name_in_two_branches() -> None:
    source = """
        @tilelang.jit
        def make(n):
            if n:
                @T.prim_func
                def kernel(x: T.Tensor((n,), T.int8)):
                    x[0] = 1
            else:
                @T.prim_func
                def kernel(x: T.Tensor((n,), T.int8), y: T.Tensor((n,), T.int8)):
                    y[0] = x[0]
            return kernel
    """
    assert shape(source) == "prim_func kernel(x*) if n; prim_func kernel(x, y*) if not n"


def test_eager() -> None:
    source = """
        @tilelang.jit
        def make(x, y, scale: float, block: int = 4):
            n = T.dynamic('n')
            h = T.const('h')
            x: T.Tensor[(n, h), T.float32]
            y: T.StridedTensor[(n, h), (h, 1), T.bfloat16]
            total = T.empty((n,), T.float32)
            last = T.empty([h], T.int8)
            with T.Kernel(n) as pid:
                y[pid, 0] = x[pid, 0]
            return last, total
    """
    found = contract(source)
    assert kernel_line(found) == "eager make(x, y*) -> last, total"
    (kernel,) = found.kernels
    assert kernel.arguments[1].spec == TensorSpec(
        "strided", ("n", "h"), "T.bfloat16", ("h", "1"), "T.StridedTensor[(n, h), (h, 1), T.bfloat16]"
    )
    assert kernel.outputs[1] == KernelArgument(
        "total", TensorSpec("tensor", ("n",), "T.float32", text="T.empty((n,), T.float32)"), written=True
    )


def test_eager_with_types_in_the_signature() -> None:
    source = (
        "@tilelang.jit\ndef make(x: T.Tensor((4,), T.int8), n: int = 2):\n    with T.Kernel(1):\n        x[0] = n\n"
    )
    assert shape(source) == "eager make(x*)"


def test_a_plain_function_that_gives_a_closure() -> None:
    source = """
        @tilelang.jit
        def inner(n):
            @T.prim_func
            def kernel(x: T.Tensor((n,), T.int8), y: T.Tensor((n,), T.int8)):
                T.copy(x, y)
            return kernel

        def make_tl(n, **kwargs):
            options = dict(n=n, flag=False)
            def launch(x: torch.Tensor, y: torch.Tensor | None, z=None) -> None:
                rows = x.view(-1)
                if y is not None:
                    y = y.view(-1)
                inner(**options)(rows, y)
            return launch
    """
    found = contract(source, "make_tl")
    assert kernel_line(found) == "closure launch(x, y*, z)"
    assert found.kernels[0].arguments[1].spec == TensorSpec("tensor", text="torch.Tensor | None")
    assert found.kernels[0].arguments[2].default == "None"
    assert found.opaque == ()


DELEGATE = """
    def inner(n, forward):
        @T.prim_func
        def copy(x: T.Tensor((n,), T.int8), y: T.Tensor((n,), T.int8), k: T.int32):
            if forward:
                T.copy(x, y)
            else:
                T.copy(y, x)
        return copy

"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("inner(n, True)", "delegated copy(x, y*, k)"),
        ("inner(n, forward=False)", "delegated copy(x*, y, k)"),
        ("inner(n, flag)", "delegated copy(x*, y*, k)"),
        ("inner(*everything)", "delegated copy(x*, y*, k)"),
        ("inner(n, True) if n else inner(n, False)", "delegated copy(x*, y, k) if n; delegated copy(x, y*, k) if n; delegated copy(x*, y, k) if not n; delegated copy(x, y*, k) if not n"),
    ],
)  # fmt: skip
def test_delegation(call: str, expected: str) -> None:
    source = f"{textwrap.dedent(DELEGATE)}@tilelang.jit\ndef make(n, flag):\n    return {call}\n"
    found = shape(source)
    assert sorted(found.split("; ")) == sorted(expected.split("; "))


def test_delegation_across_modules_and_through_a_name() -> None:
    tree = Tree.of(
        pkg__inner=IMPORTS + textwrap.dedent(DELEGATE),
        pkg__outer="import tilelang\nfrom .inner import inner as build\n\n@tilelang.jit\ndef make(n):\n    kernel = build(n, True)\n    return kernel\n",
        pkg__far="import tilelang\nfrom . import outer\n\n@tilelang.jit\ndef make(n):\n    return outer.make(n)\n",
    )
    assert kernel_line(tree.contract("pkg.outer", "make")) == "delegated copy(x, y*, k)"
    assert kernel_line(tree.contract("pkg.far", "make")) == "delegated copy(x, y*, k)"


def test_a_delegate_that_is_not_found_is_named() -> None:
    found = contract("from elsewhere import build\n\n@tilelang.jit\ndef make(n):\n    return build(n)\n")
    assert [(kernel.style, kernel.delegate, kernel.arguments) for kernel in found.kernels] == [
        ("delegated", "build", ())
    ]
    assert "build" in found.opaque[0]


@pytest.mark.parametrize(
    "rest",
    [
        "return build(4)",
        "if n:\n    @tilelang.autotune(configs=[])\n    @tilelang.jit(out_idx=[1])\n    def tuned(block=None):\n        return build(block)\n    return tuned()\nreturn build",
        "return tilelang.compile(build(4), out_idx=[1])",
        "made = build(4)\nreturn made",
        "chosen = build if n else build\nreturn chosen(4)",
        "return tilelang.jit(build)(4)",
    ],
)  # fmt: skip
def test_kernels_built_by_a_function_inside(rest: str) -> None:
    kernel = "def build(block):\n    @T.prim_func\n    def kernel(x: T.Tensor((4,), T.int8), y: T.Tensor((4,), T.int8)):\n        T.copy(x, y)\n    return kernel\n"
    found = contract(f"@tilelang.jit\ndef make(n):\n{textwrap.indent(kernel + rest, '    ')}\n")
    assert {
        (kernel.name, kernel.style, tuple((a.name, a.written) for a in kernel.arguments)) for kernel in found.kernels
    } == {("kernel", "prim_func", (("x", False), ("y", True)))}
    if "out_idx" in rest:
        assert found.out_idx == "[1]"


def test_a_jit_factory_inside_a_plain_function() -> None:
    source = """
        def make(n):
            @tilelang.jit(out_idx=[1])
            def inner(m):
                @T.prim_func
                def kernel(x: T.Tensor((m,), T.int8), y: T.Tensor((m,), T.int8)):
                    T.copy(x, y)
                return kernel
            return inner(n)
    """
    found = contract(source)
    assert (kernel_line(found), found.out_idx, found.opaque) == ("prim_func kernel(x, y*)", "[1]", ())


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ("@T.prim_func\ndef kernel(x: T.Tensor((4,), T.int8)):\n    x[0] = 1\nrun(kernel)", "prim_func kernel(x*)"),
        ("@tilelang.jit\ndef inner(m):\n    @T.prim_func\n    def kernel(x: T.Tensor((m,), T.int8)):\n        x[0] = 1\n    return kernel\ninner(4)(x)", "prim_func kernel(x*)"),
        ("@tilelang.jit\ndef inner(x):\n    x: T.Tensor((4,), T.int8)\n    with T.Kernel(1):\n        x[0] = 1\ninner(y)", "eager inner(x*)"),
    ],
)  # fmt: skip
def test_kernels_that_are_not_given_back_are_named(inside: str, line: str) -> None:
    tree = Tree.of(sample=f"{IMPORTS}def make(n):\n{textwrap.indent(inside, '    ')}\n")
    facts = tree.files["sample"].facts["make"]
    assert facts is not None and not facts.factory
    found = tree.contract("sample", "make")
    assert kernel_line(found) == line and any("not given back" in note for note in found.opaque)


@pytest.mark.parametrize(
    ("returned", "style", "note"),
    [
        ("self.kernel", "opaque", "self.kernel"),
        ("kernels[n]", "opaque", "kernels[n]"),
        ("n", "opaque", "n"),
        ("functools.partial(run, n)", "opaque", "functools.partial(run, n)"),
        ("lambda x, y: run(x, y)", "closure", ""),
    ],
)
def test_what_is_not_understood_is_named(returned: str, style: str, note: str) -> None:
    found = contract(f"@tilelang.jit\ndef make(n):\n    return {returned}\n")
    assert [kernel.style for kernel in found.kernels] == [style]
    assert any(note in text and text.startswith("line 7:") for text in found.opaque) if note else True


def test_a_factory_without_a_kernel_is_named() -> None:
    found = contract("@tilelang.jit\ndef make(n):\n    pass\n")
    assert [kernel.style for kernel in found.kernels] == ["opaque"] and found.opaque == (
        "line 6: make gives back no kernel that can be seen",
    )


@pytest.mark.parametrize(
    ("decorator", "out_idx"),
    [
        ("", None),
        ("(out_idx=None)", "None"),
        ("(out_idx=[-1])", "[-1]"),
        ("(out_idx = [4 , 5])", "[4, 5]"),
        ("(target='cuda')", None),
    ],
)
def test_out_idx(decorator: str, out_idx: str | None) -> None:
    body = "def make(n):\n    @T.prim_func\n    def kernel(x: T.Tensor((n,), T.int8)):\n        x[0] = 1\n    return kernel\n"
    assert contract(f"@tilelang.jit{decorator}\n{body}").out_idx == out_idx


def test_options_that_may_hide_out_idx_are_named() -> None:
    found = contract(
        "@tilelang.jit(**options)\ndef make(n):\n    @T.prim_func\n    def kernel(x: T.Tensor((n,), T.int8)):\n        x[0] = 1\n    return kernel\n"
    )
    assert found.opaque == ("line 5: options **options may hold out_idx",)


# ---------------------------------------------------------------------------- types


def spec(annotation: str, before: str = "") -> TensorSpec:
    source = f"@tilelang.jit\ndef make(n, dtype, config, flag):\n    {before}\n    @T.prim_func\n    def kernel(x: {annotation}):\n        x[0] = 1\n    return kernel\n"
    return contract(source).kernels[0].arguments[0].spec


@pytest.mark.parametrize(
    ("annotation", "form", "axes", "dtype", "strides"),
    [
        ("T.Tensor((n, 4), 'int8')", "tensor", ("n", "4"), '"int8"', None),
        ("T.Tensor([n, n * 2], dtype)", "tensor", ("n", "n * 2"), "dtype", None),
        ("T.Tensor[(n,), T.float32]", "tensor", ("n",), "T.float32", None),
        ("T.Tensor[(n, ), config.dtype]", "tensor", ("n",), "config.dtype", None),
        ("T.Tensor[n, 4]", "tensor", ("n", "4"), None, None),
        ("T.Tensor[(n, 4)]", "tensor", ("n", "4"), None, None),
        ("T.Tensor((n,))", "tensor", ("n",), None, None),
        ("T.Tensor(shape=(n,), dtype=T.int32)", "tensor", ("n",), "T.int32", None),
        ("T.Tensor(n, T.int32)", "tensor", ("n",), "T.int32", None),
        ("T.Tensor((*config.shape, n), T.int32)", "tensor", ("*config.shape", "n"), "T.int32", None),
        ("T.Tensor(config.shape, T.int32)", "tensor", ("config.shape",), "T.int32", None),
        ("T.Tensor[sizes, T.int32]", "tensor", ("sizes",), "T.int32", None),
        ("T.StridedTensor((n, 4), (4, 1), T.int8)", "strided", ("n", "4"), "T.int8", ("4", "1")),
        ("T.StridedTensor[(n, 4), (4, 1), T.int8]", "strided", ("n", "4"), "T.int8", ("4", "1")),
        ("T.StridedTensor(shape=(n,), strides=(1,), dtype='uint8')", "strided", ("n",), '"uint8"', ("1",)),
        ("T.Buffer((n,), T.int8)", "buffer", ("n",), "T.int8", None),
        ("T.Buffer[(n,), 'int8']", "buffer", ("n",), '"int8"', None),
        ("T.Tensor[(n,), T.ptr]", "tensor", ("n",), "T.ptr", None),
        ("T.Tensor((n,), T.int8) if flag else T.Tensor((n,), T.int32)", "tensor", ("n",), "T.int8 if flag else T.int32", None),
        ("T.Tensor((n, 1), T.int8) if flag else T.Tensor((n, 2), T.int8)", "tensor", ("n", "1 if flag else 2"), "T.int8", None),
        ("T.ptr", "pointer", None, None, None),
        ("T.handle", "pointer", None, None, None),
        ("T.ptr('float32')", "pointer", None, '"float32"', None),
        ("T.int32", "scalar", None, "T.int32", None),
        ("T.float8_e4m3fn", "scalar", None, "T.float8_e4m3fn", None),
        ("'int64'", "scalar", None, '"int64"', None),
        ("int", "scalar", None, "int", None),
        ("dtype", "scalar", None, "dtype", None),
        ("config.index_dtype", "scalar", None, "config.index_dtype", None),
        ("T.Tensor((n,), T.int8) if flag else T.int8", "opaque", None, None, None),
        ("Spec", "opaque", None, None, None),
        ("T.Tensor(*everything)", "opaque", None, None, None),
        ("make_type(n)", "opaque", None, None, None),
    ],
)  # fmt: skip
def test_spellings_of_a_type(
    annotation: str, form: str, axes: tuple[str, ...] | None, dtype: str | None, strides: tuple[str, ...] | None
) -> None:
    found = spec(annotation, "sizes = config.sizes")
    assert (found.form, found.shape, found.dtype, found.strides) == (form, axes, dtype, strides)
    assert found.text or form == "opaque"


@pytest.mark.parametrize(
    ("before", "axes"),
    [
        ("shape = (n, 4)", ("n", "4")),
        ("shape, other = (n, 4), 1", ("n", "4")),
        ("shape: tuple = [n]", ("n",)),
        ("shape = (n, 4) if flag else (n,)", ("shape",)),
        ("shape = (n,)\n    if flag:\n        shape = (n, 2)", ("shape",)),
        ("shape = (n,)\n    shape += (4,)", ("shape",)),
        ("pass", ("shape",)),
    ],
)
def test_a_shape_by_name(before: str, axes: tuple[str, ...]) -> None:
    assert spec("T.Tensor(shape, T.int8)", before).shape == axes


def test_a_type_by_name() -> None:
    assert spec("Rows", "Rows = T.Tensor((n, 4), T.int8)").shape == ("n", "4")


def test_an_annotation_in_quotes() -> None:
    assert spec("'T.Tensor((n, 4), T.int8)'").shape == ("n", "4")


def test_handles_that_the_body_gives_a_type() -> None:
    source = """
        @T.prim_func
        def make(a: T.handle, b: T.handle, n: T.int32):
            x = T.match_buffer(a, (n, 4), "int8")
            y = T.match_buffer(b, (n,), dtype="int32")
            y[0] = x[0, 0]
    """
    found = contract(source)
    assert kernel_line(found) == "prim_func make(a, b*, n)"
    assert [argument.spec.form for argument in found.kernels[0].arguments] == ["buffer", "buffer", "scalar"]
    assert found.kernels[0].arguments[0].spec.shape == ("n", "4")


def test_parameters_that_a_prim_func_types_in_its_body() -> None:
    source = """
        @tilelang.jit
        def make(n):
            @T.prim_func
            def kernel(x, y: T.Tensor((n,), T.int8)):
                x: T.Tensor((n,), T.int8)
                T.copy(y, x)
            return kernel
    """
    found = contract(source)
    assert (kernel_line(found), found.opaque) == ("prim_func kernel(x*, y)", ())
    assert found.kernels[0].arguments[0].spec.shape == ("n",)


def test_a_type_that_is_not_understood_is_named() -> None:
    source = (
        "@tilelang.jit\ndef make(n):\n    @T.prim_func\n    def kernel(x: Spec, y):\n        pass\n    return kernel\n"
    )
    found = contract(source)
    assert found.opaque == (
        "line 8: kernel: the type of x is not understood: Spec",
        "line 8: kernel: the type of y is not understood: no annotation",
    )
