"""What a stretch of work would cost on the device: counts, and an ESTIMATE in microseconds.

Counts are exact for what this torch dispatches; the device's own torch has kernels for some composites, and fuses. Times
come from the table of rates: every operator takes the dispatch floor or its memory or arithmetic time, whichever is
longest; a host round trip and the path by the host are added. No time here was measured on a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

import torch

from porter.sim import callers
from porter.sim.operators import has_kernel, read_operators
from porter.sim.rates import Rates
from porter.sim.rules import WIDE_INTEGERS, is_strided_view
from porter.sim.storage import on_device
from porter.sim.watchers import Call, Copy, Event, Launch

ESTIMATE = "estimate from published constants, not measured"
_PICKS = frozenset({"index", "index_select", "gather", "embedding", "take"})
_PLACES = frozenset(
    {"index_copy", "_index_put_impl", "index_put", "scatter", "scatter_add", "index_add", "index_fill", "put"}
)
_ADDED_PRODUCTS = frozenset({"addmm", "addmv", "baddbmm", "addbmm"})
_PLAIN_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "_grouped_mm", "_int_mm"})
_OVERWRITES = frozenset({"fill", "zero", "copy"})
_WIDE = WIDE_INTEGERS | {torch.float64}


def touched(tensor: torch.Tensor) -> int:
    """Bytes that reading or writing a tensor touches: broadcast dimensions count once."""
    if tensor.is_contiguous():
        return tensor.numel() * tensor.element_size()
    extents = [1 if step == 0 else extent for step, extent in zip(tensor.stride(), tensor.shape, strict=True)]
    return prod(extents) * tensor.element_size()


@dataclass
class Cost:
    """Counts of a stretch of work. Bytes are of device memory. ``host_reads``, ``uploads``: copies and reads to and from the
    host. ``fallbacks``: operators by the host. ``bounces``: casts to or from 64 bits, which go by the host. ``launches``:
    runs of compiled graphs; ``compiled``: operators inside them. ``estimated_us``: see the module."""

    operators: int = 0
    fallbacks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0
    host_reads: int = 0
    uploads: int = 0
    bounces: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    launches: int = 0
    compiled: int = 0
    estimated_us: float = 0.0
    by_operator: Counter[str] = field(default_factory=Counter)

    @property
    def round_trips(self) -> int:
        """Times that the device and the host wait for each other."""
        return self.host_reads + self.uploads + self.bounces + self.fallbacks

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``estimated_us`` is said to be an estimate."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "by_operator"}
        values["estimated_us"] = round(self.estimated_us, 1)
        ordered = sorted(self.by_operator.items(), key=lambda item: (-item[1], item[0]))
        return {**values, "round_trips": self.round_trips, "by_operator": dict(ordered), "basis": ESTIMATE}

    def render(self) -> str:
        """One line for a person."""
        return (
            f"{self.operators} ops, {self.launches} compiled launches, {self.round_trips} host round trips, "
            f"{self.bytes_read} bytes read, {self.bytes_written} written, about {self.estimated_us:.0f} us ({ESTIMATE})"
        )


def _leaves(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)


def product_flops(call: Call) -> int:
    """Operations of a matrix product: two for each multiply-add; 0 for what is no product."""
    adds = call.base in _ADDED_PRODUCTS
    if not adds and call.base not in _PLAIN_PRODUCTS:
        return 0
    operands = [one for one in _leaves(call.args) if one.dim() >= 1][adds:]
    if len(operands) < 2 or not call.outputs:
        return 0
    return 2 * call.outputs[0].numel() * int(operands[0].shape[-1])


def _traffic(call: Call) -> tuple[int, int]:
    """(bytes read, bytes written) of device memory."""
    named = [value for name, value in call.kwargs.items() if name not in call.outs]
    reads = [one for one in _leaves((*call.args, *named)) if on_device(one)]
    in_place = bool(call.written) and any(one is call.written[0] for one in reads)
    if call.base in _PICKS:
        given = sum(touched(one) for one in call.outputs)
        return given + sum(touched(one) for one in reads[1:]), given
    if call.base in _PLACES and in_place:
        rest = sum(touched(one) for one in reads[1:])
        return rest, max((touched(one) for one in reads[1:] if one.dtype == reads[0].dtype), default=0)
    if call.base in _OVERWRITES:
        return sum(touched(one) for one in reads if one is not call.written[0]), touched(call.written[0])
    return sum(touched(one) for one in reads), sum(touched(one) for one in (call.outputs or call.written))


@dataclass
class Meter:
    """A watcher that counts. ``operators``: names with a device kernel."""

    rates: Rates = field(default_factory=Rates)
    operators: frozenset[str] = field(default_factory=read_operators)
    cost: Cost = field(default_factory=Cost)
    _graph_us: float = 0.0

    def starts(self, call: Call) -> None:
        """Counted when it ends."""

    def ends(self, call: Call) -> None:
        """Count an operator."""
        cost, rates = self.cost, self.rates
        if call.base == "_local_scalar_dense":
            cost.host_reads += 1
            cost.estimated_us += rates.round_trip_us
            return
        read, written = _traffic(call)
        flops = product_flops(call)
        wide_floats = any(one.dtype == torch.float32 for one in call.inputs)
        peak = rates.fp32_flops_per_us if wide_floats else rates.bf16_flops_per_us
        for tensor in call.written:
            if is_strided_view(tensor):
                whole = tensor.untyped_storage().nbytes()
                read, written = read + whole, written + whole
        cost.flops += flops
        device_us = max((read + written) / rates.memory_bytes_per_us, flops / peak)
        if callers.in_graph():
            cost.compiled += 1
            self._graph_us += flops / peak
            return
        cost.operators += 1
        cost.by_operator[call.base] += 1
        cost.bytes_read += read
        cost.bytes_written += written
        if has_kernel(self.operators, call.name.partition("::")[0], call.base, call.overload):
            cost.estimated_us += max(rates.dispatch_us, device_us)
        else:
            cost.fallbacks += 1
            cost.estimated_us += rates.round_trip_us + (read + written) / rates.host_bytes_per_us

    def copies(self, copy: Copy) -> None:
        """Count a copy."""
        cost, rates = self.cost, self.rates
        size = copy.target.numel() * copy.target.element_size()
        if copy.kind == "on-device":
            if callers.in_graph():
                cost.compiled += 1
                return
            read, written = touched(copy.source), size
            if is_strided_view(copy.target):
                whole = copy.target.untyped_storage().nbytes()
                read, written = read + whole, written + whole
            cost.operators += 1
            cost.by_operator["copy"] += 1
            cost.bytes_read += read
            cost.bytes_written += written
            if (copy.source.dtype in _WIDE) != (copy.target.dtype in _WIDE):
                cost.bounces += 1
                cost.estimated_us += rates.round_trip_us + (read + written) / rates.host_bytes_per_us
            else:
                cost.estimated_us += max(rates.dispatch_us, (read + written) / rates.memory_bytes_per_us)
            return
        if copy.kind == "to-host":
            cost.host_reads += 1
            cost.bytes_read += size
        else:
            cost.uploads += 1
            cost.bytes_written += size
        cost.estimated_us += rates.round_trip_us

    def happens(self, event: Event) -> None:
        """Count a collective."""
        if event.code == "collective":
            size = int(event.detail or 0)
            self.cost.collectives += 1
            self.cost.collective_bytes += size
            self.cost.estimated_us += max(self.rates.dispatch_us, size / self.rates.link_bytes_per_us)

    def launches(self, launch: Launch) -> None:
        """Count a compiled graph: one dispatch, its inputs read and outputs written once."""
        cost, rates = self.cost, self.rates
        read, written = sum(map(touched, launch.inputs)), sum(map(touched, launch.outputs))
        cost.launches += 1
        cost.bytes_read += read
        cost.bytes_written += written
        cost.estimated_us += max(rates.dispatch_us, (read + written) / rates.memory_bytes_per_us, self._graph_us)
        self._graph_us = 0.0
