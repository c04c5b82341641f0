"""``torch.distributed`` backend ``neuron`` over gloo, with the limits of the device's own.

One core a process, equal splits of ``all_to_all``, no reductions of 32 and 64-bit integers, no PRODUCT in
``reduce_scatter``. What the device's backend of April 2026 lacked (send, recv) works here and is a strict finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from porter.sim import runtime
from porter.sim.errors import DeviceLimitError, UnsupportedError
from porter.sim.names import NAME
from porter.sim.storage import on_device, to_host
from porter.sim.watchers import Event, tell

_INTEGERS = tuple(getattr(torch, name) for name in ("int32", "int64", "uint32", "uint64") if hasattr(torch, name))
_Gloo: Any = dist.ProcessGroupGloo
_Group: Any = dist.ProcessGroup
_codes: Any = c10d


def _host(value: Any) -> Any:
    if on_device(value):
        return to_host(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_host(one) for one in value])
    return value


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if on_device(value) else []
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _leaves(one)]
    return []


def _say(operator: str, *values: Any) -> None:
    size = sum(one.numel() * one.element_size() for one in _leaves(list(values)))
    tell(Event("collective", operator, str(size)))


def check_reduction(operator: str, values: Any, op: Any = None) -> None:
    """Raises: UnsupportedError for integers of 32 and 64 bits, and for PRODUCT in ``reduce_scatter``."""
    for tensor in _leaves(values):
        if tensor.dtype in _INTEGERS:
            code = "NCC_EVRF063" if operator == "reduce_scatter" else "NCC_EVRF061"
            tell(Event(code, operator, str(tensor.dtype)))
            raise UnsupportedError(f"{code}: {operator} of {tensor.dtype}", fix="cast to float32 before the reduction")
    if operator == "reduce_scatter" and op is not None and op == dist.ReduceOp.PRODUCT:
        raise UnsupportedError("reduce_scatter with PRODUCT", fix="all_gather and multiply")


def check_splits(operator: str, *splits: Sequence[int] | None) -> None:
    """Raises: UnsupportedError for parts of different sizes."""
    for sizes in splits:
        if sizes and len(set(sizes)) > 1:
            tell(Event("SIM109", operator, str(list(sizes))))
            raise UnsupportedError(
                f"{operator}: split sizes {list(sizes)} differ; the device takes equal splits only",
                fix="pad every part to the same number of rows",
            )


def _point_to_point(operator: str) -> None:
    tell(Event("SIM111", operator))


class ProcessGroupNeuron(_Group):  # type: ignore[misc]
    """The device's process group. Methods carry torch's names before and since 2.13, which renamed them."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        if runtime.device_count() != 1:
            raise DeviceLimitError(
                f"the process sees {runtime.device_count()} cores; torch.distributed takes exactly one a process",
                fix="NEURON_RT_VISIBLE_CORES names one core a process; porter.sim.install(devices=1)",
            )
        if runtime.is_initialized():
            tell(Event("SIM112", "init_process_group"))
        self.inner = _Gloo(store, rank, size, timeout)
        self._name = ""

    def getBackendName(self) -> str:
        """``neuron``."""
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, text: str) -> None:
        """Not kept."""

    @property
    def group_name(self) -> str:
        """As torch.distributed set it."""
        return self._name

    @property
    def pg_name(self) -> str:
        """As torch.distributed set it."""
        return self._name

    def _get_backend(self, device: Any) -> Any:
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(NAME), torch.device("cpu")]

    def __repr__(self) -> str:
        return f"ProcessGroupNeuron({self._name})"

    def _last(self, works: Sequence[Any]) -> Any:
        for work in works[:-1]:
            work.wait()
        return works[-1]

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """One tensor in, one out."""
        _say("all_gather", output)
        return self.inner._allgather_base(_host(output), _host(input), opts or _codes.AllgatherOptions())

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """One tensor in, one out."""
        opts = opts or _codes.ReduceScatterOptions()
        check_reduction("reduce_scatter", [input], opts.reduceOp)
        _say("reduce_scatter", input)
        return self.inner._reduce_scatter_base(_host(output), _host(input), opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Pair by pair."""
        return self._last([self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Pair by pair."""
        return self._last([self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)])

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        """Equal parts only."""
        check_splits("all_to_all_single", output_splits, input_splits)
        _say("all_to_all", input)
        return self.inner.alltoall_base(
            _host(output), _host(input), list(output_splits or ()), list(input_splits or ())
        )

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """In place."""
        check_reduction("all_reduce", tensors)
        _say("all_reduce", tensors)
        return self.inner.allreduce(_host(tensors), opts or _codes.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Tensor by tensor."""
        one = _codes.AllreduceOptions()
        if opts is not None:
            one.reduceOp = opts.reduceOp
        return self._last([self.allreduce([tensor], one) for tensor in tensors])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Lists of tensors."""
        _say("all_gather", outputs)
        return self.inner.allgather(_host(outputs), _host(inputs), opts or _codes.AllgatherOptions())

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """In place."""
        _say("broadcast", tensors)
        return self.inner.broadcast(_host(tensors), opts or _codes.BroadcastOptions())

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """In place on the root."""
        check_reduction("reduce", tensors)
        _say("reduce", tensors)
        return self.inner.reduce(_host(tensors), opts or _codes.ReduceOptions())

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """To the root."""
        _say("gather", inputs)
        return self.inner.gather(_host(outputs), _host(inputs), opts or _codes.GatherOptions())

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """From the root."""
        _say("scatter", outputs)
        return self.inner.scatter(_host(outputs), _host(inputs), opts or _codes.ScatterOptions())

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Lists of tensors."""
        opts = opts or _codes.ReduceScatterOptions()
        check_reduction("reduce_scatter", inputs, opts.reduceOp)
        _say("reduce_scatter", inputs)
        return self.inner.reduce_scatter(_host(outputs), _host(inputs), opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Lists of tensors of one size."""
        check_splits("all_to_all", [one.numel() for one in inputs], [one.numel() for one in outputs])
        _say("all_to_all", inputs)
        return self.inner.alltoall(_host(outputs), _host(inputs), opts or _codes.AllToAllOptions())

    def barrier(self, opts: Any = None) -> Any:
        """All ranks arrive."""
        _say("barrier")
        return self.inner.barrier(opts or _codes.BarrierOptions())

    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        """To one rank."""
        _point_to_point("send")
        return self.inner.send(_host(tensors), destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        """From one rank."""
        _point_to_point("recv")
        return self.inner.recv(_host(tensors), source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Not there."""
        raise UnsupportedError("recv from any source", fix="name the source rank")

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Not there."""
        raise UnsupportedError("monitored_barrier", fix="barrier")


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return ProcessGroupNeuron(store, rank, size, timeout)


def register() -> None:
    """``torch.distributed`` knows the backend."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=[NAME])
