"""What torch builds on tensors: modules, autograd, autocast, generators, streams, files, tracing."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from torch import nn

from porter import sim

D = "neuron"


def test_install_again_is_the_same_device() -> None:
    sim.install(devices=2)
    assert torch._C._get_privateuse1_backend_name() == D
    assert torch.get_device_module(D) is torch.neuron


def test_modules() -> None:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.RMSNorm(8), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    r = m(x)
    n = copy.deepcopy(m).to(D)
    assert all(p.device.type == D and isinstance(p, nn.Parameter) for p in n.parameters())
    torch.testing.assert_close(n(x.to(D)).cpu(), r)
    assert nn.Linear(4, 2, device=D).neuron().weight.is_neuron
    nn.Embedding(10, 4, device=D)(torch.tensor([1, 2], device=D))


def test_state_dicts() -> None:
    m = nn.Module()
    m.register_buffer("b", torch.zeros(3))
    m.w = nn.Parameter(torch.zeros(2, 2))
    m.to(D)
    m.load_state_dict({"b": torch.ones(3), "w": torch.ones(2, 2)})
    assert m.b.device.type == D and m.b.sum().item() == 3
    assert m.state_dict()["w"].device.type == D
    with torch.device("meta"):
        n = nn.Linear(2, 2)
    assert n.to_empty(device=D).weight.device.type == D


def test_autograd_and_optimizer() -> None:
    m = nn.Linear(4, 2).to(D)
    before = m.weight.detach().clone()
    x = torch.randn(3, 4, device=D, requires_grad=True)
    m(x).pow(2).sum().backward()
    assert m.weight.grad.device.type == D and x.grad.shape == (3, 4)
    torch.optim.AdamW(m.parameters(), lr=0.1, foreach=False).step()
    assert not torch.equal(before, m.weight)


def test_autocast() -> None:
    a = torch.randn(4, 4, device=D)
    with torch.autocast(D, dtype=torch.bfloat16):
        r, s = a @ a, torch.nn.functional.linear(a, a)
        z = torch.softmax(r, -1)
    assert (r.dtype, s.dtype, z.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    with torch.autocast(D):
        assert (a @ a).dtype == torch.bfloat16
    with torch.autocast(D, enabled=False):
        assert (a @ a).dtype == torch.float32


def test_device_module() -> None:
    n = torch.neuron
    assert n.is_available() and n.device_count() == 2 and n.current_device() == 0 and n.is_initialized()
    assert n.get_device_name(1) == "neuron:1"
    assert n.get_amp_supported_dtype() == [torch.float32, torch.float16, torch.bfloat16]
    n.synchronize()
    n.empty_cache()
    n.set_device(0)
    n.init()
    for absent in ("mem_get_info", "get_device_capability", "CUDAGraph", "nvtx", "default_generators"):
        assert not hasattr(n, absent)


def test_streams_and_events() -> None:
    n = torch.neuron
    s = n.Stream()
    with n.stream(s):
        assert n.current_stream() == s
        with n.Stream() as t:
            assert n.current_stream() == t != s
        assert n.current_stream() == s
    assert n.current_stream() == n.default_stream() != s
    a, b = n.Event(enable_timing=True), n.Event(enable_timing=True)
    a.record()
    torch.ones(10, device=D) + 1
    b.record()
    s.wait_event(b)
    s.wait_stream(n.current_stream())
    assert b.query() and a.elapsed_time(b) > 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        n.Event().elapsed_time(b)
    seen: list[object] = []
    with n.stream(s):
        thread = threading.Thread(target=lambda: seen.append(n.current_stream()))
        thread.start()
        thread.join()
    assert seen == [n.default_stream()]


def test_accelerator() -> None:
    a = torch.accelerator
    assert a.is_available() and a.current_accelerator().type == D and a.device_count() == 2
    a.synchronize()
    a.set_device_index(1)
    assert a.current_device_index() == 1
    a.set_device_index(0)
    assert a.memory_allocated() == torch.neuron.memory_allocated()
    assert a.current_stream() == torch.neuron.current_stream()


def test_generators() -> None:
    g = torch.Generator(device=D)
    assert isinstance(g, torch.Generator) and g.device.type == D
    assert isinstance(torch.Generator(), torch.Generator) and torch.Generator().device.type == "cpu"
    g.manual_seed(5)
    a = torch.randn(3, device=D, generator=g)
    g.manual_seed(5)
    assert torch.equal(a.cpu(), torch.randn(3, generator=g))
    torch.empty(3, device=D).exponential_(generator=g)
    assert torch.multinomial(torch.ones(4, device=D), 1, generator=g).device.type == D
    state = torch.neuron.get_rng_state()
    b = torch.rand(3, device=D)
    torch.neuron.set_rng_state(state)
    assert torch.equal(b, torch.rand(3, device=D))
    torch.manual_seed(3)
    c = torch.randn(3, device=D)
    torch.neuron.manual_seed_all(3)
    assert torch.equal(c, torch.randn(3, device=D))


def test_default_device() -> None:
    with torch.device(D):
        assert torch.zeros(2).device.type == D
        assert (torch.ones(2) + torch.arange(2)).device.type == D
    torch.set_default_device(D)
    t = torch.ones(2) @ torch.ones(2)
    torch.set_default_device(None)
    assert t.device.type == D


def test_save_and_load() -> None:
    t = torch.arange(6.0).view(2, 3).to(D)
    b = io.BytesIO()
    torch.save({"t": t, "v": t[1]}, b)
    b.seek(0)
    r = torch.load(b)
    assert r["t"].device.type == D and r["t"].tolist() == [[0, 1, 2], [3, 4, 5]] and r["v"].tolist() == [3, 4, 5]
    r["t"][1, 0] = 9
    assert r["v"][0].item() == 9
    b.seek(0)
    assert torch.load(b, map_location="cpu")["t"].device.type == "cpu"
    c = io.BytesIO()
    torch.save(torch.arange(4.0), c)
    for where in (D, "neuron:1", torch.device(D)):
        c.seek(0)
        assert torch.load(c, map_location=where).device.type == D


def test_storages() -> None:
    s = torch.UntypedStorage(16, device=D)
    assert s.device.type == D and s.nbytes() == 16
    t = torch.empty(0, device=D).set_(s, 0, (2, 2), (2, 1))
    t.fill_(3)
    assert s.cpu().tolist() == list(torch.full((4,), 3.0).untyped_storage().tolist())
    assert s.clone().device.type == D and s.clone().data_ptr() != s.data_ptr()
    assert torch.UntypedStorage(4).nbytes() == 4
    assert torch.UntypedStorage([1, 2, 3]).tolist() == [1, 2, 3]
    assert torch.zeros(4).untyped_storage().to(device=D).device.type == D


def test_custom_operators() -> None:
    @torch.library.custom_op("porter_sim_test::scale", mutates_args=("x",))
    def scale(x: torch.Tensor, s: float) -> None:
        x.mul_(s)

    t = torch.ones(3, device=D)
    scale(t, 2.0)
    assert t.tolist() == [2, 2, 2]
    library = torch.library.Library("porter_sim_host", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    r = torch.ops.porter_sim_host.twice(t)
    assert r.device.type == D and r.tolist() == [4, 4, 4]


def test_fake_tensors_and_modes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    with FakeTensorMode() as mode:
        x = torch.empty(2, 3, device=D)
        assert (x @ x.t()).softmax(-1).device.type == D
    real = torch.ones(2, device=D)
    assert mode.from_tensor(real).device.type == D
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2, device=D) + 1
    assert "aten.add.Tensor" in seen


def test_export() -> None:
    m = nn.Linear(4, 4).to(D)
    program = torch.export.export(m, (torch.ones(2, 4, device=D),))
    torch.testing.assert_close(program.module()(torch.ones(2, 4, device=D)), m(torch.ones(2, 4, device=D)))


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.zeros(4, device=D)
        x[1:3] = 1
        x.add_(1)
        assert x.tolist() == [1, 2, 2, 1]


def test_threads_share_the_device() -> None:
    t = torch.zeros(4, device=D)
    threads = [threading.Thread(target=lambda i=i: t[i].fill_(i)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert t.tolist() == [0, 1, 2, 3]


def test_attention() -> None:
    q = torch.randn(1, 2, 4, 8)
    f = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(f(q.to(D), q.to(D), q.to(D), is_causal=True).cpu(), f(q, q, q, is_causal=True))


def test_pinned_memory_is_plain_memory() -> None:
    assert torch.ones(2).pin_memory().to(D, non_blocking=True).tolist() == [1, 1]
    assert torch.ones(2, device=D).is_pinned() is False


def test_data_loader() -> None:
    batches = list(torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4))
    assert [b.to(D, non_blocking=True).sum().item() for b in batches] == [6, 22]
