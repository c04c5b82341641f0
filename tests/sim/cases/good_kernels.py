"""Kernels that the device takes as they are, and the rewrites that the findings advise. None may be flagged."""

from __future__ import annotations

import math

import torch


def stays_on_the_device(x, i):
    return torch.where(x.sum() > 0, x, -x)


def reads_under_a_comment(x, i):
    # NEURON: host sync the caller wants a number
    return x.sum().item()


def reads_beside_a_comment(x, i):
    return x.sum().item()  # NEURON: host sync the caller wants a number


def reads_in_a_long_statement(x, i):
    # NEURON: host sync the caller wants
    # two numbers
    return (
        x.sum().item()
        + x.amax().item()
    )  # fmt: skip


def tests_under_a_comment(x, i):
    # NEURON: host sync a check of the caller's
    if x.sum().item() > 1e9:
        raise ValueError
    return x


def goes_wide_under_a_comment(x, i):
    # NEURON: 64-bit the contract says int64
    wide = i.to(torch.int64)
    return x.gather(1, wide[:, None] % 6)  # NEURON: 64-bit gather takes nothing else


def _helper(x):
    return x.sum().item()


def calls_a_helper_under_a_comment(x, i):
    # NEURON: host sync the helper reads
    return _helper(x)


def makes_places(x, i):
    return torch.arange(6, dtype=torch.int32, device=x.device) + 1


def makes_constants(x, i):
    return torch.full((4, 6), 2.0, device=x.device) + torch.zeros_like(x) + torch.ones(6, device=x.device)


def larger_of_two(x, i):
    return torch.where(x > -x, x, -x)


def ordered(x, i):
    return x.topk(6, dim=-1)[0]


def place_of_the_largest(x, i):
    return x.topk(1, dim=-1)[1].to(torch.int32)


def largest(x, i):
    return x.amax(-1) + x.amin() + x.max()


def counts(x, i):
    return (x > 0).sum(-1, dtype=torch.int32).cumsum(0, dtype=torch.int32)


def writes_rows(x, i):
    x[1:3] = 0.5
    x[0].copy_(x[3])
    x.index_put_((i[:2],), x[:2] * 2)
    x[i] = x.clone()
    torch.add(x[0], 1.0, out=x[1])


def writes_through_a_transpose(x, i):
    x.t().mul_(2.0)


def fills_by_a_mask(x, i):
    x[x > 0] = 0.0
    x.masked_fill_(x < 0, 1.0)


def repeats_by_number(x, i):
    return x.repeat_interleave(2, 0), x[:2].repeat_interleave(i[:2], 0, output_size=3)


def rows_by_index(x, i):
    return x.index_select(0, i) + x[i]


def counts_in_floats(x, i):
    return torch.zeros(8, device=x.device).index_add_(0, i, torch.ones(4, device=x.device))


def counts_by_comparison(x, i):
    bins = torch.arange(8, dtype=torch.int32, device=x.device)
    return (i[:, None] == bins[None, :]).sum(0, dtype=torch.int32)


def unpacks_nibbles(x, i):
    packed = i.to(torch.uint8).to(torch.int32)
    return torch.stack([packed & 15, (packed >> 4) & 15], -1)


def scales_by_exponents(x, i):
    return x * ((i + 127) << 23).view(torch.float32)[:, None]


def products(x, i):
    return x @ x.t() + torch.bmm(x[None], x.t()[None])[0], x.bfloat16() @ x.bfloat16().t()


def widens_float8(x, i):
    q = x.to(torch.float8_e4m3fn)
    stored = torch.zeros(4, 6, dtype=torch.float8_e4m3fn, device=x.device)
    stored.index_put_((i[:2],), q[:2])
    return stored.to(torch.bfloat16) * 2, q.view(torch.uint8)[i], torch.cat([q, q])


def rotates_in_real_numbers(x, i):
    even, odd = x.view(4, 3, 2).unbind(-1)
    return torch.stack([even * 0.5 - odd * 0.25, odd * 0.5 + even * 0.25], -1)


def normalizes(x, i):
    return torch.softmax(x, -1) + torch.nn.functional.rms_norm(x, (6,)) + torch.nn.functional.silu(x)


def attends(x, i):
    scores = x @ x.t() / math.sqrt(6.0)
    mask = torch.tril(torch.ones(4, 4, device=x.device, dtype=torch.bool))
    return torch.softmax(torch.where(mask, scores, -1e30), -1) @ x


def reads_shapes(x, i):
    assert x.dtype == torch.float32 and x.shape[0] == 4 and x.stride(0) >= 1
    return x.reshape(-1)[: x.shape[0]].unsqueeze(0).expand(2, 4).contiguous()


def pads(x, i):
    return torch.nn.functional.pad(x, (1, 2))


def repeats(x, i):
    return x.repeat(2, 3)


def multiplies_groups(x, i):
    rows, weights = x[:, :4].to(torch.bfloat16).repeat(1, 2), torch.ones(4, 8, 8, dtype=torch.bfloat16, device=x.device)
    return torch._grouped_mm(rows, weights, i.clamp_min(1))


KERNELS = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]
