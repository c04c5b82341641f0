"""Tensors of the device: factories, moves, views, writes, types."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

D = "neuron"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device=D),
        lambda: torch.zeros(2, 3, device=D),
        lambda: torch.ones(2, device=D, dtype=torch.bfloat16),
        lambda: torch.full((2,), 7, device=D),
        lambda: torch.arange(5, device=D),
        lambda: torch.randn(4, 4, device=D),
        lambda: torch.rand(3, device=D),
        lambda: torch.randint(0, 5, (3,), device=D),
        lambda: torch.randperm(5, device=D),
        lambda: torch.tensor([1.0, 2.0], device=D),
        lambda: torch.tensor(3, device="neuron:0"),
        lambda: torch.as_tensor([1, 2], device=D),
        lambda: torch.eye(3, device=D),
        lambda: torch.linspace(0, 1, 5, device=D),
        lambda: torch.tril(torch.ones(3, 3, device=D)),
        lambda: torch.empty_like(torch.ones(2, device=D)),
        lambda: torch.empty_strided((2, 3), (1, 2), device=D),
        lambda: torch.ones(2, device=D).new_zeros(4),
        lambda: torch.ones(2, device=D).new_tensor([1, 2]),
        lambda: torch.ones(2).to(D),
        lambda: torch.ones(2).neuron(),
        lambda: torch.ones(2).to(torch.device(D)),
        lambda: torch.zeros(0, 4, device=D),
    ],
)
def test_factory(make) -> None:
    tensor = make()
    assert tensor.device == torch.device("neuron:0")
    assert tensor.is_neuron


def test_round_trip() -> None:
    x = torch.randn(3, 4)
    y = x.to(D)
    assert torch.equal(y.cpu(), x) and torch.equal(y.to("cpu", torch.float64), x.double())
    z = torch.empty(3, 4, device=D)
    z.copy_(x.t().contiguous().t())
    assert torch.equal(z.cpu(), x)
    x[0, 0] = 99
    assert y[0, 0].item() != 99


@pytest.mark.parametrize("stride", [(12, 4, 1), (100, 7, 1), (1, 1, 1)])
def test_strides_of_size_one_dimensions_stay(stride: tuple[int, ...]) -> None:
    y = torch.empty_strided((1, 1, 4), stride, device=D)
    assert y.stride() == stride
    assert (y.view(torch.int32)).device.type == D


def test_second_device() -> None:
    t = torch.zeros(2, device="neuron:1") + 1
    assert t.device.index == 1 and t[0].device.index == 1 and (t * t).device.index == 1
    assert t.to("neuron:0").device.index == 0
    with torch.neuron.device(1):
        assert torch.neuron.current_device() == 1
        assert torch.zeros(1, device=D).device.index == 1
    assert torch.neuron.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device="neuron:2")


def test_arithmetic_equals_the_cpu() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    x, y = a.to(D), b.to(D)
    for left, right in [
        ((x @ y + 1).relu(), (a @ b + 1).relu()),
        (torch.softmax(x, -1), torch.softmax(a, -1)),
        (torch.einsum("ij,jk->ik", x, y), torch.einsum("ij,jk->ik", a, b)),
        (torch.cat([x, x], 0).sum(-1), torch.cat([a, a], 0).sum(-1)),
        (x.topk(3, -1)[1], a.topk(3, -1)[1]),
        (x.max(-1)[0], a.max(-1)[0]),
        (torch.where(x > 0, x, 0.0), torch.where(a > 0, a, 0.0)),
        (2 - x, 2 - a),
        (x.std(0), a.std(0)),
        (torch.nn.functional.silu(x), torch.nn.functional.silu(a)),
        (x.masked_fill(x > 0, -1.0), a.masked_fill(a > 0, -1.0)),
        (torch.stack([x, x]).permute(1, 2, 0).reshape(8, -1), torch.stack([a, a]).permute(1, 2, 0).reshape(8, -1)),
        (x.unfold(1, 4, 2), a.unfold(1, 4, 2)),
        (torch.vmap(lambda row: row * 2)(x), a * 2),
    ]:
        assert left.device.type == D
        torch.testing.assert_close(left.cpu(), right)


def _writes(t: torch.Tensor) -> None:
    d = t.device
    t[1] = 5
    t[:, 2].add_(1)
    t[0, 1:3] = torch.tensor([7.0, 8.0], device=d)
    t.view(2, 12)[1].mul_(2)
    t.t()[3].fill_(9)
    t[torch.tensor([0, 3], device=d), torch.tensor([5, 5], device=d)] = -1.0
    t.index_copy_(0, torch.tensor([2], device=d), torch.full((1, 6), 3.0, device=d))
    t.index_fill_(1, torch.tensor([0], device=d), 4.0)
    t.scatter_(1, torch.tensor([[1]], device=d), 6.0)
    t.index_add_(0, torch.tensor([1, 1], device=d), torch.ones(2, 6, device=d))
    t[t > 8] = 0.5
    t.masked_fill_(t == -1, 2.0)
    t.narrow(0, 3, 1).zero_()
    t.permute(1, 0)[4, 2] = 11.0
    t.flatten()[7] = 13.0
    t.view(2, 2, 6)[:, 1].transpose(0, 1)[2:4, :1].copy_(torch.full((2, 1), 17.0, device=d))
    t.view(torch.int32)[3, 5] = 0x3F800000
    t.unsqueeze(0).squeeze(0)[0:2].clamp_(max=10)
    t[::2, 1::3] += 0.25
    torch.add(t[0], 1, out=t[3])


def test_writes_through_views_of_views() -> None:
    x, reference = torch.zeros(4, 6, device=D), torch.zeros(4, 6)
    _writes(x)
    _writes(reference)
    assert torch.equal(x.cpu(), reference)


def test_views_share_one_storage() -> None:
    x = torch.arange(24.0, device=D).view(4, 6)
    assert x[1].data_ptr() == x.data_ptr() + 24
    assert x[1]._base is not None
    assert x.untyped_storage().data_ptr() == x[2:, 1:].t().untyped_storage().data_ptr()
    assert x[2:, 1:].storage_offset() == 13
    assert x.untyped_storage().nbytes() == 96
    version = x._version
    x[0].add_(1)
    assert x._version == version + 1


def test_out_arguments() -> None:
    a = torch.randn(3, 3, device=D)
    o = torch.empty(3, 3, device=D)
    pointer = o.data_ptr()
    assert torch.mm(a, a, out=o) is o
    assert o.data_ptr() == pointer
    torch.testing.assert_close(o.cpu(), a.cpu() @ a.cpu())
    e = torch.empty(0, device=D)
    torch.add(a, a, out=e)
    torch.testing.assert_close(e.cpu(), (a + a).cpu())
    big = torch.zeros(4, 3, 3, device=D)
    torch.mm(a, a, out=big[2].t())
    torch.testing.assert_close(big[2].t().cpu(), a.cpu() @ a.cpu())
    assert big[[0, 1, 3]].abs().sum().item() == 0
    values, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.int64, device=D)
    torch.sort(a, dim=1, out=(values, indices))
    assert torch.equal(values.cpu(), a.cpu().sort(dim=1)[0])


def test_rows_of_a_cache() -> None:
    cache = torch.zeros(10, 4, dtype=torch.bfloat16, device=D)
    slots = torch.tensor([7, 2], dtype=torch.int32, device=D)
    rows = torch.randn(2, 4, device=D).bfloat16()
    cache.index_put_((slots,), rows)
    assert torch.equal(cache.cpu()[[7, 2]], rows.cpu())
    assert torch.equal(cache.index_select(0, slots).cpu(), rows.cpu())
    assert torch.equal(cache[slots].cpu(), rows.cpu())


@pytest.mark.parametrize(
    "name",
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    ],
)
def test_types(name: str) -> None:
    dtype = getattr(torch, name)
    t = torch.ones(2, 2, dtype=dtype, device=D)
    assert t.dtype == dtype and t.cpu().dtype == dtype
    assert torch.equal(t.cpu(), torch.ones(2, 2, dtype=dtype))
    assert t.clone().t().contiguous().dtype == dtype


def test_float8_e4m3fn() -> None:
    x = torch.randn(4, 8)
    host, q = x.to(torch.float8_e4m3fn), x.to(D).to(torch.float8_e4m3fn)
    assert q.dtype == torch.float8_e4m3fn and q.device.type == D
    assert torch.equal(q.cpu().view(torch.uint8), host.view(torch.uint8))
    torch.testing.assert_close(q.float().cpu(), host.float())
    q.view(torch.uint8)[0, 0] = 0
    assert q.float()[0, 0].item() == 0
    c = torch.zeros(4, 8, dtype=torch.float8_e4m3fn, device=D)
    c[1:3] = q[0:2]
    assert torch.equal(c.cpu().view(torch.uint8)[1:3], q.cpu().view(torch.uint8)[0:2])
    assert torch.cat([q, q]).shape == (8, 8)
    assert q[torch.tensor([0, 2], device=D)].dtype == torch.float8_e4m3fn
    assert q.t().contiguous().is_contiguous()


def test_scales_and_packed_values() -> None:
    e = torch.tensor([127, 128], dtype=torch.uint8, device=D).view(torch.float8_e8m0fnu)
    assert e.dtype == torch.float8_e8m0fnu and e.float().tolist() == [1.0, 2.0]
    f = torch.tensor([0x21, 0xF7], dtype=torch.uint8, device=D).view(torch.float4_e2m1fn_x2)
    assert f.dtype == torch.float4_e2m1fn_x2 and f.device.type == D
    assert f.cpu().view(torch.uint8).tolist() == [0x21, 0xF7]
    packed = f.view(torch.uint8).to(torch.int32)
    assert torch.stack([packed & 15, (packed >> 4) & 15], -1).flatten().tolist() == [1, 2, 7, 15]
    empty = torch.empty(2, 3, dtype=torch.float4_e2m1fn_x2, device=D)
    assert empty.clone().shape == (2, 3)


def test_mixed_operands_raise() -> None:
    x = torch.ones(2, 2, device=D)
    for wrong in [
        lambda: x + torch.ones(2),
        lambda: x @ torch.ones(2, 2),
        lambda: torch.cat([x, torch.ones(2, 2)]),
        lambda: x.index_select(0, torch.tensor([0])),
        lambda: torch.where(x > 0, x, torch.ones(2, 2)),
        lambda: x.index_copy_(0, torch.tensor([0]), torch.ones(1, 2)),
        lambda: torch.mm(x, x, out=torch.empty(2, 2)),
    ]:
        with pytest.raises(RuntimeError):
            wrong()
    assert (x + torch.tensor(1.0)).sum().item() == 8


def test_host_only_forms_raise() -> None:
    x = torch.ones(2, 2, 2, 2, device=D)
    with pytest.raises(TypeError):
        x.numpy()
    with pytest.raises(NotImplementedError, match="memory format"):
        torch.empty(2, 2, 2, 2, device=D, memory_format=torch.channels_last)
    with pytest.raises(RuntimeError):
        x.to(memory_format=torch.channels_last)
    assert x.cpu().numpy().sum() == 16


def test_lazy_conjugates_and_negatives() -> None:
    host = torch.randn(3, 2, dtype=torch.complex64)
    x = host.to(D)
    for form in (
        lambda t: t.conj(),
        lambda t: t.conj().imag,
        lambda t: t.conj().t() @ t,
        lambda t: t.conj().clone().real,
    ):
        assert torch.equal(form(x).cpu().resolve_conj().resolve_neg(), form(host).resolve_conj().resolve_neg())
    x.conj().imag.fill_(2)
    host.conj().imag.fill_(2)
    assert torch.equal(x.cpu(), host)


def test_index_out_of_range_raises() -> None:
    with pytest.raises(IndexError):
        torch.ones(3, device=D)[torch.tensor([5], device=D)]


def test_repr_and_values() -> None:
    assert repr(torch.ones(2, device=D)) == "tensor([1., 1.], device='neuron:0')"
    assert torch.tensor([1, 2], device=D).tolist() == [1, 2]
    assert bool(torch.ones(1, device=D)) and int(torch.tensor(3, device=D)) == 3


def test_memory_lives_as_long_as_a_view() -> None:
    view = torch.arange(1000.0, device=D)[10:20]
    gc.collect()
    assert view.tolist()[0] == 10.0


def test_memory_is_accounted() -> None:
    gc.collect()
    before = torch.neuron.memory_allocated()
    big = torch.zeros(1 << 20, device=D)
    half = big[: 1 << 19]
    assert torch.neuron.memory_allocated() - before == 4 << 20
    del big
    assert torch.neuron.memory_allocated() - before == 4 << 20
    del half
    gc.collect()
    assert torch.neuron.memory_allocated() == before
    assert torch.neuron.max_memory_allocated() >= before + (4 << 20)
    assert torch.neuron.get_device_properties(0).total_memory == 24 << 30


def test_deepcopy_and_resize() -> None:
    t = torch.arange(4.0).to(D)
    c = copy.deepcopy(t)
    c[0] = 9
    assert t[0].item() == 0 and c.device.type == D
    t.resize_(2, 3)
    assert t.shape == (2, 3) and t.flatten()[:4].tolist() == [0, 1, 2, 3]
    t.resize_(2)
    assert t.tolist() == [0, 1]


def test_random_writes_equal_the_cpu() -> None:
    """The same chain of random views and writes on both devices leaves the same memory."""
    generator = torch.Generator().manual_seed(1)

    def pick(n: int) -> int:
        return int(torch.randint(0, n, (1,), generator=generator))

    host = torch.randn(6, 8, 5, generator=generator)
    device = host.to(D)
    for _ in range(300):
        views = [host, device]
        for _ in range(1 + pick(3)):
            rank = views[0].dim()
            if rank == 0:
                break
            kind, dim = pick(4), pick(rank)
            extent = views[0].shape[dim]
            if kind == 0 and extent:
                at = pick(extent)
                views = [v.select(dim, at) for v in views]
            elif kind == 1 and extent:
                start, step = pick(extent), 1 + pick(2)
                views = [v[(slice(None),) * dim + (slice(start, None, step),)] for v in views]
            elif kind == 2:
                other = pick(rank)
                views = [v.transpose(dim, other) for v in views]
            else:
                views = [v.unsqueeze(dim) for v in views]
        value, form = pick(9) - 4, pick(4)
        for v in views:
            if form == 0:
                v.fill_(value)
            elif form == 1:
                v.mul_(0.5).add_(value)
            elif form == 2:
                v.copy_(v.flip(0) if v.dim() else v + 1)
            else:
                torch.clamp(v, -3, 3, out=v)
        assert views[0].stride() == views[1].stride() and views[0].storage_offset() == views[1].storage_offset()
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bfloat16, torch.float32, torch.bool])
@pytest.mark.parametrize("number", [1, 1.5, True])
def test_numbers_promote_as_numbers(dtype: torch.dtype, number: float) -> None:
    for shape in ((), (2,)):
        host = torch.ones(shape, dtype=dtype)
        device = host.to(D)
        for function in (torch.add, torch.mul, torch.pow):
            assert function(device, number).dtype == function(host, number).dtype, (function, shape)
        assert (number + device).dtype == (number + host).dtype
        assert torch.where(device > 0, device, number).dtype == torch.where(host > 0, host, number).dtype
