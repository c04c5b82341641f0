"""Kernels that each do one thing the device refuses or pays for. ``# expect CODE`` marks the line of the finding."""

from __future__ import annotations

import torch


def reads_a_value(x, i):
    return x * x.sum().item()  # expect SIM101


def asks_a_tensor(x, i):
    if x.sum() > 0:  # expect SIM101
        return x
    return -x


def compares_on_the_host(x, i):
    return torch.equal(x, x)  # expect SIM101


def lists(x, i):
    return i.tolist()  # expect SIM102


def goes_to_the_cpu(x, i):
    return x.cpu()  # expect SIM102


def prints(x, i):
    return repr(x)  # expect SIM101 SIM102 SIM106 SIM108


def uploads(x, i):
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device=x.device)  # expect SIM103


def uploads_late(x, i):
    mask = torch.tril(torch.ones(6, 6))
    return x @ mask.to(x.device)  # expect SIM103


def falls_back(x, i):
    return torch.maximum(x, -x)  # expect SIM104


def sorts(x, i):
    return x.sort(-1)[0]  # expect SIM104


def takes_the_largest_place(x, i):
    return x.argmax(-1)  # expect SIM104


def takes_the_largest_by_axis(x, i):
    return x.max(-1)[0]  # expect SIM104


def rounds(x, i):
    return x.round()  # expect SIM104


def draws(x, i):
    return torch.empty_like(x).uniform_()  # expect SIM104


def powers_of_two(x, i):
    return torch.exp2(x)  # expect SIM104


def counts_wide(x, i):
    return (x > 0).sum(-1)  # expect SIM105


def makes_wide_places(x, i):
    return torch.arange(6, device=x.device)  # expect SIM105


def widens(x, i):
    return i.to(torch.int64)  # expect SIM105


def widens_by_name(x, i):
    return i.long()  # expect SIM105


def makes_doubles(x, i):
    return torch.zeros(2, dtype=torch.float64, device=x.device)  # expect SIM106


def computes_in_doubles(x, i):
    return x.double()  # expect SIM106


def writes_a_column(x, i):
    x[:, 0] = 3.0  # expect SIM107


def writes_columns(x, i):
    x[:, 1:3].copy_(x[:, 3:5])  # expect SIM107


def writes_a_column_by_out(x, i):
    torch.mul(x[:, 0], 2.0, out=x[:, 1])  # expect SIM107


def adds_to_columns(x, i):
    x[:, 2:4] += 1.0  # expect SIM107


def finds(x, i):
    return torch.nonzero(x)  # expect SIM108


def selects(x, i):
    return torch.masked_select(x, x > 0)  # expect SIM108


def indexes_by_a_mask(x, i):
    return x[x > 0]  # expect SIM108


def writes_by_a_mask(x, i):
    x[x[:, 0] > -9] = x[1].clone()  # expect SIM108


def repeats_by_values(x, i):
    return x[:2].repeat_interleave(i[:2], 0)  # expect SIM108


def is_unique(x, i):
    return torch.unique(i)  # expect SIM108


def counts_bins(x, i):
    return torch.bincount(i)  # expect SIM108


def gathers_by_a_broadcast_index(x, i):
    index = i.to(torch.int64)[:, None].expand(4, 6)  # expect SIM105
    return x.gather(0, index)  # expect SIM110


def topk_of_integers(x, i):
    return i.topk(2)  # expect NCC_EVRF013


def counts_by_scatter(x, i):
    counts = torch.zeros(8, dtype=torch.int32, device=x.device)
    return counts.index_add_(0, i, torch.ones_like(i))  # expect NCC_EVRF016


def accumulates_integers(x, i):
    counts = torch.zeros(8, dtype=torch.int32, device=x.device)
    return counts.index_put_((i,), torch.ones_like(i), accumulate=True)  # expect NCC_EVRF016


def shifts_bytes(x, i):
    return i.to(torch.uint8) >> 4  # expect NCC_EVRF022


def shifts_bytes_in_place(x, i):
    narrow = i.to(torch.int8)
    narrow >>= 1  # expect NCC_EVRF022
    return narrow


def multiplies_integers(x, i):
    square = i[None, :].expand(4, 4).contiguous()
    return square @ square  # expect NCC_EVRF035


def raises_wide_integers(x, i):
    wide = i.to(torch.int64)  # expect SIM105
    return wide.pow(2)  # expect NCC_EVRF062 SIM105


def has_a_wide_constant(x, i):
    return i.to(torch.int64).clamp(max=0x7FFF_FFFF_FFFF_FFFF)  # expect NCC_ESFH002 SIM105


def rotates_by_complex_numbers(x, i):
    return torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)) * 1j)  # expect NCC_EVRF004


def computes_on_float8(x, i):
    q = x.to(torch.float8_e4m3fn)
    return q == q  # expect NCC_EVRF051


def keeps_fnuz(x, i):
    return x.to(torch.float8_e4m3fnuz)  # expect NCC_EVRF005


def helper(x):
    return x.sum().item()  # expect SIM101


def syncs_in_a_helper(x, i):
    return helper(x)


def runs_a_foreign_operator(x, i):
    return torch.ops.porter_sim_bad.twice(x)  # expect SIM104


def holds_too_much(x, i):
    return [torch.empty(3 << 30, dtype=torch.float32, device=x.device) for _ in range(3)]  # expect NCC_EOOM001


KERNELS = [
    value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == __name__
]
KERNELS = [one for one in KERNELS if one is not helper]
