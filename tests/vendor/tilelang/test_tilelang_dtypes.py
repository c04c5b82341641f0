"""Dtypes, limits and integer helpers of the emitted tilelang beside those of the real one, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# Everything a dtype says of itself, by name; run once on either package.
DESCRIBE = """
import json, sys
import torch
import tilelang
import tilelang.language as T
from tilelang.language import dtypes

def answer(call):
    try:
        return call()
    except NotImplementedError:
        raise
    except Exception:
        return "refused"

def number(value):
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, float) else int(value)

def describe(d):
    return [
        str(d), repr(d), d.bits, d.bytes, d.lanes, d.itemsize, int(d.type_code), answer(lambda: str(d.as_torch())),
        bool(d.is_float4()), bool(d.is_float4_e2m1fn()), bool(d.is_float4_e2m1_unpacked()), bool(dtypes.is_f8f6f4_family(d)),
    ]

names = sorted(name for name in vars(dtypes) if isinstance(vars(dtypes)[name], dtypes.dtype))
spelled = ["foo", "float4_e2m1_unpacked", "handle", "int3", "uint1", "float32x3", "bool", "float128", "custom[tfloat32]", "int32x", "double", "long", "short", "half", "x4"]
given = [torch.float32, torch.bfloat16, torch.int8, torch.uint16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2, torch.complex64, torch.bool, int, float, bool]
limits = {}
for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "int4", "float16", "bfloat16", "float32", "float64",
             "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
             "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"):
    limits[name] = [number(T.max_value(getattr(T, name, name))), answer(lambda: number(T.min_value(getattr(T, name, name))))]
out = {
    "names": {name: describe(getattr(dtypes, name)) for name in names},
    "spelled": {name: answer(lambda: describe(T.dtype(name))) for name in spelled},
    "given": {str(value): answer(lambda: str(T.dtype(value))) for value in given},
    "limits": limits,
    "integers": [[tilelang.next_power_of_2(x), tilelang.cdiv(x, 3)] for x in range(1, 40)],
    "pass_configs": {key.name: key.value for key in tilelang.PassConfigKey},
    "path": tilelang.__file__,
    "version": tilelang.__version__.split("+")[0],
}
print("@" + json.dumps(out))
"""


@pytest.fixture(scope="module")
def answers(run_with: Callable[..., str], vendor_folder: Path) -> tuple[Any, Any]:
    """What the emitted and the installed real package say."""
    found = [
        json.loads(next(line[1:] for line in run_with(DESCRIBE, *first).splitlines() if line.startswith("@")))
        for first in ((vendor_folder,), ())
    ]
    assert found[0]["path"].startswith(str(vendor_folder)) and not found[1]["path"].startswith(str(vendor_folder))
    return found[0], found[1]


@pytest.mark.parametrize("part", ["names", "given", "limits", "integers", "pass_configs", "version"])
def test_the_emitted_package_says_what_the_real_one_says(answers: tuple[Any, Any], part: str) -> None:
    ours, theirs = answers
    assert ours[part] == theirs[part]


def test_spellings(answers: tuple[Any, Any]) -> None:
    ours, theirs = answers
    # ``x4`` is a spelling of nothing that TVM happens to take.
    assert {**ours["spelled"], "x4": None} == {**theirs["spelled"], "x4": None}
    assert ours["spelled"]["x4"] == "refused"


def test_a_dtype_is_its_name(tl: Any) -> None:
    t = tl.language
    assert t.float32 == "float32" and hash(t.float32) == hash("float32") and isinstance(t.float32, str)
    assert (
        t.dtype(t.float32) is t.float32
        and t.dtype(torch.float32) == t.float32
        and t.float32.with_lanes(4) == "float32x4"
    )
    assert {t.int8: 1}["int8"] == 1


def test_numpy_names(tl: Any) -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is optional here")
    for value, name in (
        (numpy.float32, "float32"),
        (numpy.dtype("int64"), "int64"),
        (numpy.bool_, "bool"),
        (numpy.uint8, "uint8"),
    ):
        assert tl.language.dtype(value) == name


@pytest.mark.parametrize("value", [None, torch.complex64, object()])
def test_what_is_no_dtype(tl: Any, value: object) -> None:
    with pytest.raises(TypeError):
        tl.language.dtype(value)


def test_operands_of_a_product(tl: Any) -> None:
    check = tl.language.dtypes.validate_gemm_ab_dtypes
    check("bfloat16", "bfloat16")
    check("float8_e4m3fn", "float4_e2m1fn", allow_f8f6f4_mixed=True)
    check("float16", "float32", a_in_tmem=True)
    for first, second, mixed in (("float8_e4m3fn", "float8_e5m2", False), ("float16", "float8_e5m2", True)):
        with pytest.raises(ValueError):
            check(first, second, allow_f8f6f4_mixed=mixed)
