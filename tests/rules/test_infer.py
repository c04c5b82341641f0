"""What an expression evidently is."""

from __future__ import annotations

import libcst as cst
import pytest

from porter.rules.infer import Value
from porter.rules.source import SourceFile


def value(*lines: str) -> Value:
    """Value of the last line, an expression, in a kernel with a tensor ``x`` and an int ``n``."""
    body = "".join(f"    {line}\n" for line in lines)
    source = f"import torch\nimport torch.nn.functional as F\ndef helper(a) -> torch.Tensor: ...\ndef kernel(x: torch.Tensor, n: int, u) -> None:\n{body}"
    file = SourceFile("a.py", source.encode())
    last = file.of(cst.Expr)[-1]
    return file.value(last.value)


@pytest.mark.parametrize(
    ("expression", "tensor", "dtype"),
    [
        ("x", True, None),
        ("n", False, None),
        ("u", None, None),
        ("u.foo()", None, None),
        ("u.unsqueeze(0)", True, None),
        ("x.shape", False, None),
        ("x.shape[0]", False, None),
        ("x.numel()", False, None),
        ("x.to(torch.int32)", True, "int32"),
        ("x.to(torch.long)", True, "int64"),
        ("x.long()", True, "int64"),
        ("x.bool()", True, "bool"),
        ("x.view(torch.uint8)", True, "uint8"),
        ("x.to(u)", True, None),
        ("x.to(torch.int32).view(-1, 4)", True, "int32"),
        ("x.to(torch.int32)[0]", True, "int32"),
        ("x.to(torch.int32) + 1", True, "int32"),
        ("x.to(torch.int32) + 1.5", True, "float32"),
        ("x.to(torch.int32) / 2", True, "float32"),
        ("x.to(torch.int32) // 2", True, "int32"),
        ("x.to(torch.int32) * x.to(torch.uint8)", True, "int32"),
        ("x.to(torch.int32) * x.float()", True, "float32"),
        ("x.to(torch.int32) * x", True, None),
        ("-x.to(torch.int8)", True, "int8"),
        ("x > 0", True, "bool"),
        ("(x > 0) & (x < 3)", True, "bool"),
        ("~(x > 0)", True, "bool"),
        ("n > 0", False, None),
        ("u > 0", False, None),
        ("x is None", False, None),
        ("not x", False, None),
        ("(x > 0).sum()", True, "int64"),
        ("(x > 0).sum(dtype=torch.int32)", True, "int32"),
        ("x.to(torch.int32).cumsum(0)", True, "int64"),
        ("x.to(torch.int32).cumsum(0, dtype=torch.int32)", True, "int32"),
        ("x.topk(3)[1]", True, "int64"),
        ("torch.arange(4)", True, "int64"),
        ("torch.arange(0.0, 4)", True, "float32"),
        ("torch.arange(4, dtype=torch.int32)", True, "int32"),
        ("torch.zeros(4)", True, "float32"),
        ("torch.zeros(4, dtype=u)", True, None),
        ("torch.zeros_like(x.to(torch.int8))", True, "int8"),
        ("torch.full((2,), 3)", True, "int64"),
        ("torch.full((2,), 3.0)", True, "float32"),
        ("torch.tensor([[1, 2], [3, 4]])", True, "int64"),
        ("torch.where(x > 0, 1, 0)", True, "int64"),
        ("torch.where(x > 0, x.to(torch.int8), 0)", True, "int8"),
        ("torch.cat([x.to(torch.int8), x.to(torch.int8)])", True, "int8"),
        ("torch.iinfo(torch.int32).max", None, None),
        ("F.softmax(x.float(), -1)", True, "float32"),
        ("helper(n)", True, None),
        ("int(x)", False, None),
        ("max(n, 3)", False, None),
        ("[x, x]", False, None),
        ("f'{n}'", False, None),
        ("x.to(torch.int32) if n else x.to(torch.int32)", True, "int32"),
        ("x.to(torch.int32) if n else x.to(torch.int64)", True, None),
        ("x if n else n", None, None),
    ],
)
def test_expression(expression: str, tensor: bool | None, dtype: str | None) -> None:
    found = value(expression)
    assert (found.tensor, found.dtype) == (tensor, dtype)


@pytest.mark.parametrize(
    ("lines", "tensor", "dtype"),
    [
        (["y = x.to(torch.int32)", "y"], True, "int32"),
        (["y = x.to(torch.int32)", "y += 1", "y"], True, "int32"),
        (["y = x.to(torch.int32)", "y = u", "y"], None, None),
        (["a, b = x.shape", "a"], False, None),
        (["v, i = x.topk(3)", "i"], True, "int64"),
        (["if n:", "    y = x.bool()", "else:", "    y = x.bool()", "y"], True, "bool"),
        (["if n:", "    y = x.bool()", "else:", "    y = x.int()", "y"], True, None),
        (["y = x.int()", "if n:", "    y = x.bool()", "    raise ValueError", "y"], True, "int32"),
        (["y = x.int()", "for i in range(n):", "    y = x.float()", "y"], True, None),
        (["y = n", "for i in range(n):", "    y = y + 1", "y"], False, None),
        (["for i in range(n):", "    i"], False, None),
        (["for row in x.int():", "    row"], True, "int32"),
        (["y: torch.Tensor = u", "y"], True, None),
        (["def inner(z: torch.Tensor) -> int: ...", "inner(x)"], False, None),
        (["kind = torch.int64", "x.to(kind)"], True, "int64"),
        (["kind = x.int().dtype", "u.to(kind)"], True, "int32"),
        (["if (y := x.int()) is not None:", "    y"], True, "int32"),
        (["with torch.no_grad():", "    y = x.int()", "y"], True, "int32"),
        (["try:", "    y = x.int()", "finally:", "    pass", "y"], True, "int32"),
    ],
)
def test_statements(lines: list[str], tensor: bool | None, dtype: str | None) -> None:
    found = value(*lines)
    assert (found.tensor, found.dtype) == (tensor, dtype)


def test_expanded_views_are_known() -> None:
    assert value("x.expand(4, 4)").expanded
    assert value("x.expand(4, 4).contiguous()").expanded
    assert not value("x.view(4, 4)").expanded


def test_every_expression_of_a_kernel_is_read() -> None:
    source = "def kernel(x, n):\n    y = [a + 1 for a in x if a] + [(lambda b: b * 2)(n)]\n    return {**n, 'k': x[1:n]}, y\n"
    file = SourceFile("a.py", source.encode())
    read = file._inference.values
    names = [
        node
        for node in file.of(cst.Name)
        if node.value in ("x", "n") and not isinstance(file.parents[id(node)], cst.Param)
    ]
    assert names
    assert all(id(node) in read for node in names)
