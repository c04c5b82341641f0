"""``torch.compile(backend="neuron")``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from porter.sim.compile import REPORT

D = "neuron"


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    REPORT.clear()
    yield


def test_static_graph() -> None:
    def f(x, w):
        return torch.nn.functional.silu(x @ w) + 1

    x, w = torch.randn(3, 4, device=D), torch.randn(4, 5, device=D)
    c = torch.compile(f, backend=D, dynamic=False, fullgraph=True)
    torch.testing.assert_close(c(x, w).cpu(), f(x, w).cpu())
    c(x, w)
    assert REPORT.metrics() == {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "refused": 0}
    assert torch.neuron.get_dynamo_metrics()["graphs"] == 1


def test_writes_of_inputs() -> None:
    def f(cache, slots, rows):
        cache.index_put_((slots,), rows)
        cache[0].zero_()
        return cache.sum()

    cache = torch.zeros(4, 2, device=D)
    pointer = cache.data_ptr()
    c = torch.compile(f, backend=D, dynamic=False, fullgraph=True)
    r = c(cache, torch.tensor([1, 2], device=D, dtype=torch.int32), torch.ones(2, 2, device=D))
    assert r.item() == 4 and cache.cpu().sum() == 4 and cache.data_ptr() == pointer


def test_dynamic_shapes_are_refused() -> None:
    c = torch.compile(lambda x: x * 2, backend=D, dynamic=True)
    with pytest.raises(Exception, match="NCC_EMOD025"):
        c(torch.randn(5, 3, device=D))
    assert REPORT.metrics()["refused"] == 1


def test_second_shape_is_refused_unless_static() -> None:
    c = torch.compile(lambda x: x * 2, backend=D)
    c(torch.randn(5, 3, device=D))
    with pytest.raises(Exception, match="NCC_EMOD025"):
        c(torch.randn(6, 3, device=D))
    torch._dynamo.reset()
    REPORT.clear()
    c = torch.compile(lambda x: x * 2, backend=D, dynamic=False)
    c(torch.randn(5, 3, device=D))
    c(torch.randn(6, 3, device=D))
    assert REPORT.metrics()["graphs"] == 2 and REPORT.metrics()["recompiles"] == 1


def test_graph_breaks_are_counted() -> None:
    def f(x):
        y = x + 1
        if y.sum().item() > 0:
            y = y * 2
        return y

    assert torch.compile(f, backend=D, dynamic=False)(torch.ones(2, device=D)).tolist() == [4, 4]
    assert REPORT.metrics()["graphs"] == 2 and REPORT.metrics()["graph_breaks"] == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(f, backend=D, dynamic=False, fullgraph=True)(torch.ones(2, device=D))


def test_other_modes_warn() -> None:
    with pytest.warns(UserWarning, match="mode 'default' only"):
        torch.compile(lambda x: x + 1, backend=D, mode="max-autotune")(torch.ones(2, device=D))


def test_module_and_gradient() -> None:
    m = nn.Linear(4, 4).to(D)
    c = torch.compile(m, backend=D, dynamic=False)
    c(torch.ones(2, 4, device=D)).sum().backward()
    assert m.weight.grad.device.type == D
    with torch.no_grad():
        torch.testing.assert_close(c(torch.ones(2, 4, device=D)), m(torch.ones(2, 4, device=D)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(backend: str) -> None:
    assert torch.compile(lambda x: torch.relu(x) * 2, backend=backend)(torch.ones(2, device=D)).tolist() == [2, 2]
