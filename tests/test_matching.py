"""Signature comparison: stubtest's rules, one case a rule."""

from __future__ import annotations

import pytest

from porter.matching import call_arguments, kernel_differences, signature_differences
from porter.surface.model import Contract, Kernel, KernelArgument, Signature, TensorSpec
from porter.surface.python import extract


def signature(text: str) -> Signature:
    return extract("case.py", f"def f({text}): ...\n".encode()).functions[0].signature


@pytest.mark.parametrize(
    ("upstream", "override"),
    [
        ("", ""),
        ("a, b=1", "a, b=1"),
        ("a, b=1", "a: int, b: int = 1"),
        ("a, b=0x10", "a, b=16"),
        ("a, *, b=None", "a, *, b=None"),
        ("a, *, b=None, c", "a, *, c, b=None"),
        ("a, /, b", "x, /, b"),
        ("a, *, b=1", "a, b=1"),
        ("a, b", "*args, **kwargs"),
        ("*args, **kwargs", "*args, **kwargs"),
        ("a", "a, _scratch=None"),
        ("a=...", "a=3"),
        ("a='x'", 'a="x"'),
    ],
)
def test_fits(upstream: str, override: str) -> None:
    assert signature_differences(signature(upstream), signature(override)) == ()


@pytest.mark.parametrize(
    ("upstream", "override", "message"),
    [
        ("a, b", "a", "'b' is missing"),
        ("a", "a, b", "'b' does not exist upstream"),
        ("a", "a, b=1", "'b' does not exist upstream"),
        ("a", "a, _b", "'_b' does not exist upstream"),
        ("a, b", "b, a", "parameter 1 must be 'a', is 'b'"),
        ("a, b=1", "a, b", "'b' must have the default 1, is required"),
        ("a, b", "a, b=1", "'b' must be required, has the default 1"),
        ("a=1", "a=2", "the default of 'a' must be 1, is 2"),
        ("a=1", "a=True", "the default of 'a' must be 1, is True"),
        ("a=1e-5", "a=1e-6", "the default of 'a' must be"),
        ("a, *, b", "a, *, c, b", "keyword-only 'c' does not exist upstream"),
        ("a, *, b", "a", "keyword-only 'b' is missing"),
        ("a, b", "a, *, b", "'b' must be positional, is keyword-only"),
        ("a, b", "a, b, /", "must be accepted by keyword, is positional-only"),
        ("*args", "a=1", "*args is missing"),
        ("**kw", "", "**kw is missing"),
    ],
)
def test_differs(upstream: str, override: str, message: str) -> None:
    found = signature_differences(signature(upstream), signature(override))
    assert any(message in text for text in found), found


def kernel(*names: str, style: str = "prim_func") -> Kernel:
    return Kernel("k", style, tuple(KernelArgument(name, TensorSpec("tensor")) for name in names))


@pytest.mark.parametrize(
    ("out_idx", "expected"),
    [
        (None, ("a", "b", "c")),
        ("None", ("a", "b", "c")),
        ("[2]", ("a", "b")),
        ("[-1]", ("a", "b")),
        ("-1", ("a", "b")),
        ("[0, 1]", ("c",)),
        ("X", ("a", "b", "c")),
    ],
)
def test_out_idx_leaves_the_call(out_idx: str | None, expected: tuple[str, ...]) -> None:
    assert call_arguments(kernel("a", "b", "c"), out_idx) == expected


def test_kernel_arguments_are_compared_by_order_and_name() -> None:
    upstream = Contract((kernel("x", "y"), kernel("x", "y")))
    assert kernel_differences(upstream, Contract((kernel("x", "y", style="closure"),))) == ()
    assert (
        "must take (x, y), takes (y, x)"
        in kernel_differences(upstream, Contract((kernel("y", "x", style="closure"),)))[0]
    )
    assert "no inner function" in kernel_differences(upstream, Contract())[0]
