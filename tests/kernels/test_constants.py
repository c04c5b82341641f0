"""Constants of kernels: one tensor a device, none that a traced call and a real one share."""

from __future__ import annotations

from typing import Any

import torch
from harness import check_fake, check_fullgraph, check_mutations, count_ops
from torch._subclasses.fake_tensor import FakeTensorMode

from overrides.tilelang_ops._constants import Constant, Scalars


def test_a_constant_is_made_once() -> None:
    constant, here = Constant([[1, 2], [3, 4]], torch.float32), torch.zeros(3)
    first = constant.beside(here)
    assert first is constant.beside(torch.ones(1, dtype=torch.int32)) and first.tolist() == [[1, 2], [3, 4]]
    assert first.dtype == torch.float32 and constant.beside(here.to("meta")).device.type == "meta"


def test_scalars_hold_their_values() -> None:
    scalars, here = Scalars(31, -(2**31), 7), torch.zeros(3)
    found: Any = scalars.beside(here)
    assert {key: value.item() for key, value in found.items()} == {31: 31, -(2**31): -(2**31), 7: 7}
    assert all(value.shape == () and value.dtype == torch.int32 for value in found.values())
    assert found is scalars.beside(here)


def test_a_traced_call_makes_its_own() -> None:
    constant, scalars = Constant([1.0, 2.0], torch.float32), Scalars(3)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x * constant.beside(x) + (y.to(torch.int32) >> scalars.beside(x)[3]))

    args = torch.ones(2), torch.full((2,), 16.0)
    # Before and after a real call: none may be left with a tensor of another kind.
    for _ in range(2):
        check_fake(kernel, *args)
        check_fullgraph(kernel, *args)
        check_mutations(kernel, *args, written=("y",))
        now = args[0].clone(), args[1].clone()
        kernel(*now)
        assert now[1].tolist() == [3.0, 4.0]
    assert type(constant.beside(args[0])) is torch.Tensor
    with FakeTensorMode(shape_env=None) as mode:
        assert type(constant.beside(mode.from_tensor(args[0]))) is not torch.Tensor
    assert count_ops(kernel, *args).count("aten.mul.Tensor") == 1
