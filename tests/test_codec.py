"""The lock's JSON form: nothing lost, defaults left out, the same text for the same data."""

from __future__ import annotations

import json

import msgspec
import pytest

from porter.codec import dumps, from_json, to_json
from porter.surface.model import (
    Argument,
    Contract,
    Kernel,
    KernelArgument,
    Parameter,
    ParameterKind,
    Signature,
    Symbol,
    SymbolKind,
    TensorSpec,
)

SYMBOL = Symbol(
    id="a.b.f",
    source="a",
    kind=SymbolKind.FACTORY,
    module="a.b",
    qualname="f",
    path="a/b.py",
    signature=Signature((Parameter("x", ParameterKind.KEYWORD_ONLY, "1", "int"), Parameter("y")), "None"),
    contract=Contract(
        (Kernel("k", "prim_func", (KernelArgument("t", TensorSpec("tensor", ("n", "4"), "T.int32"), True),)),),
        "[0]",
        ("f:3: exec",),
    ),
    bases=(Argument("Base"), Argument("type", "metaclass")),
    own="1" * 32,
    body="2" * 32,
    aliases=("a.f",),
)


def test_round_trip() -> None:
    assert from_json(json.loads(dumps(to_json(SYMBOL))), Symbol) == SYMBOL


def test_defaults_are_left_out() -> None:
    data = to_json(SYMBOL)
    assert isinstance(data, dict)
    assert "is_async" not in data and "line" not in data and "value" not in data
    assert to_json(Parameter("y")) == {"name": "y"}


def test_one_parameter_is_one_line() -> None:
    text = dumps({"symbols": {"f": to_json(SYMBOL)}})
    assert '{"name": "x", "kind": "keyword-only", "default": "1", "annotation": "int"},' in (
        line.strip() for line in text.splitlines()
    )
    assert text.endswith("}\n")


@pytest.mark.parametrize("data", [{"name": 1}, {"nom": "x"}, [], {"name": "x", "kind": "odd"}])
def test_wrong_data_is_refused(data: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        from_json(data, Parameter)


def test_unknown_values_are_refused() -> None:
    with pytest.raises(TypeError, match="no JSON form for object"):
        to_json(object())
