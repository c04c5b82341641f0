"""A stand-in for TorchNeuron: torch's PrivateUse1 device named ``neuron``, on host memory, in pure Python.

Importing this module registers it, once a process and for good. A DLPack capsule of a host tensor with its device
type rewritten imports as a PrivateUse1 tensor over the same memory; every operation runs on the host through one
boxed fallback. Like the real device it refuses mixed operands, pinned allocation and resizing of storages, and it
has no ``mem_get_info``. It is no judge of what Trainium can compute.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
import types
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "neuron"
HBM = 24 << 30
CALLS: list[str] = []
"""Names of torch.neuron functions called, for tests."""

aten = torch.ops.aten


class Event:
    """A device event; it cannot be used before it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        CALLS.append("Event")
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        assert self._time is not None and other._time is not None
        return (other._time - self._time) * 1e3


class Stream:
    """A device stream."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.priority = priority

    def synchronize(self) -> None:
        CALLS.append("stream.synchronize")

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event


_current = Stream()


def _logged(name: str, value: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        CALLS.append(name)
        return value

    return call


module = types.ModuleType("torch.neuron")
for _name, _value in {
    "is_available": True,
    "is_initialized": True,
    "_is_in_bad_fork": False,
    "_lazy_init": None,
    "device_count": 2,
    "current_device": 0,
    "set_device": None,
    "synchronize": None,
    "empty_cache": None,
    "manual_seed": None,
    "manual_seed_all": None,
    "memory_allocated": 1 << 30,
    "max_memory_allocated": 2 << 30,
    "memory_reserved": 3 << 30,
    "max_memory_reserved": 4 << 30,
    "reset_peak_memory_stats": None,
    "get_device_properties": types.SimpleNamespace(name="neuron:0", total_memory=HBM),
    "get_amp_supported_dtype": [torch.bfloat16, torch.float16, torch.float32],
    "current_stream": _current,
    "set_stream": None,
}.items():
    setattr(module, _name, _logged(_name, _value))


class Device(contextlib.AbstractContextManager[None]):
    """``with torch.neuron.device(d)``."""

    def __init__(self, device: Any) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


module.Event, module.Stream, module.device = Event, Stream, Device  # type: ignore[attr-defined]
module.stream = contextlib.nullcontext  # type: ignore[attr-defined]

_setup_privateuseone_for_python_backend(NAME, backend_module=module)  # type: ignore[no-untyped-call]

# ---------------------------------------------------------------- the same memory under two device names

_capsules = ctypes.pythonapi
_capsules.PyCapsule_GetPointer.restype = ctypes.c_void_p
_capsules.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_HOST, _DEVICE = 1, 12


def _rebadge(tensor: torch.Tensor, device_type: int, index: int = 0) -> torch.Tensor:
    capsule = torch._C._to_dlpack(tensor.detach() if tensor.requires_grad else tensor)
    pointer = _capsules.PyCapsule_GetPointer(capsule, b"dltensor")
    ctypes.cast(pointer + 8, ctypes.POINTER(ctypes.c_int32))[0] = device_type
    ctypes.cast(pointer + 12, ctypes.POINTER(ctypes.c_int32))[0] = index
    return torch._C._from_dlpack(capsule)


def to_device(tensor: torch.Tensor, index: int | None = 0) -> torch.Tensor:
    """A device tensor over the memory of a host tensor."""
    return _rebadge(tensor, _DEVICE, index or 0)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor over the memory of a device tensor."""
    return _rebadge(tensor, _HOST)


def on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    schema = op._schema.arguments
    flat, spec = pytree.tree_flatten((args, kwargs))
    if any(isinstance(x, torch.Tensor) and not on_device(x) and x.ndim for x in flat) and any(
        on_device(x) for x in flat
    ):
        raise RuntimeError(f"{op}: tensors on neuron and on the host")
    back: dict[int, torch.Tensor] = {}
    host = []
    for x in flat:
        if on_device(x):
            alias = to_host(x)
            back[id(alias)] = x
            x = alias
        elif isinstance(x, torch.device) and x.type == NAME:
            x = real_device("cpu")
        host.append(x)
    host_args, host_kwargs = pytree.tree_unflatten(host, spec)
    positional = [a for a in schema if not a.kwarg_only]
    fixed = tuple(
        torch.tensor(v) if isinstance(v, (bool, int, float)) and str(a.type) == "Tensor" else v
        for a, v in zip(positional, host_args, strict=False)
    )
    outputs = {a.name: kwargs[a.name] for a in schema if a.is_out and on_device(kwargs.get(a.name))}
    for name, out in outputs.items():
        if out.numel() == 0:  # the host's kernel cannot resize memory that is not its own
            host_kwargs[name] = torch.empty(0, dtype=out.dtype, device=real_device("cpu"))
    result = op(*fixed, **host_kwargs)
    for name, out in outputs.items():
        if out.numel() == 0:
            _resize(out, list(host_kwargs[name].shape))
            to_host(out).copy_(host_kwargs[name])
            back[id(host_kwargs[name])] = out
    index = next((x.device.index for x in flat if on_device(x)), 0)

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return back[id(value)] if id(value) in back else to_device(value, index)

    return pytree.tree_map(wrap, result)


real_device = torch.device


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    return to_device(
        torch.empty(size, dtype=dtype or torch.get_default_dtype(), device=real_device("cpu")), device and device.index
    )


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    host = torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype(), device=real_device("cpu"))
    return to_device(host, device and device.index)


def _as_strided(self: Any, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    out = aten.alias.default(self)
    return aten.as_strided_.default(
        out, size, stride, self.storage_offset() if storage_offset is None else storage_offset
    )


def _view(self: Any, size: Any) -> Any:
    meta = torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device=real_device("meta")).view(size)
    return _as_strided(self, list(meta.size()), list(meta.stride()))


def _copy_from(self: Any, dst: Any, non_blocking: bool = False) -> Any:
    aten.copy_.default(to_host(dst) if on_device(dst) else dst, to_host(self) if on_device(self) else self)
    return dst


def _resize(self: Any, size: Any, *, memory_format: Any = None) -> Any:
    if list(self.shape) != list(size):
        with torch.no_grad():
            self.data = to_device(torch.empty(size, dtype=self.dtype, device=real_device("cpu")), self.device.index)
    return self


def _set_storage(self: Any, source: Any, offset: int, size: Any, stride: Any = ()) -> Any:
    count = source.nbytes()
    buffer = (ctypes.c_uint8 * count).from_address(source.data_ptr())
    buffer.source = source  # type: ignore[attr-defined]
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=count).view(self.dtype)
    with torch.no_grad():
        self.data = to_device(flat.as_strided(size, stride, offset))
    return self


_library = torch.library.Library("aten", "IMPL")
for _op, _function in {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "as_strided": _as_strided,
    "view": _view,
    "_reshape_alias": _as_strided,
    "_copy_from": _copy_from,
    "resize_": _resize,
    "set_.source_Storage_storage_offset": _set_storage,
}.items():
    _library.impl(_op, _function, "PrivateUse1")
_every = torch.library.Library("_", "IMPL")
_every.fallback(_fallback, "PrivateUse1")
_every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


# No PrivateUse1 allocator can be written in Python, so that storages are moved through tensors.
_storage_to = torch.storage._StorageBase.to


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if real_device(device).type != NAME or self.device.type == NAME:
        return _storage_to(self, device=device, non_blocking=non_blocking)
    flat = torch.empty(0, dtype=torch.uint8, device=real_device("cpu"))
    return to_device(flat.set_(self).clone()).untyped_storage()


torch.storage._StorageBase.to = _to  # type: ignore[method-assign]


def register_backend() -> None:
    """Make ``neuron`` a torch.distributed backend over gloo, with the real one's refusals."""
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    def convert(value: Any) -> Any:
        if on_device(value):
            return to_host(value)
        return type(value)(convert(item) for item in value) if isinstance(value, (list, tuple)) else value

    class Group(dist.ProcessGroup):
        def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
            super().__init__(rank, size)
            self.inner, self._group_name = dist.ProcessGroupGloo(store, rank, size, timeout), ""

        def getBackendName(self) -> str:
            return NAME

        def _set_group_name(self, name: str) -> None:
            self._group_name = name

        @property
        def group_name(self) -> str:
            return self._group_name

        pg_name = group_name

        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            for tensor in tensors if isinstance(tensors, list) else [tensors]:
                if not tensor.is_floating_point():
                    raise RuntimeError("the Neuron compiler refuses integer reductions")
            return self.inner.allreduce(convert(tensors), opts or c10d.AllreduceOptions())

        def all_gather_single(self, out: Any, value: Any, opts: Any = None) -> Any:
            return self.inner._allgather_base(convert(out), convert(value), opts or c10d.AllgatherOptions())

        _allgather_base = all_gather_single

        def broadcast(self, tensors: Any, opts: Any = None) -> Any:
            return self.inner.broadcast(convert(tensors), opts or c10d.BroadcastOptions())

        def barrier(self, opts: Any = None) -> Any:
            return self.inner.barrier(opts or c10d.BarrierOptions())

    dist.Backend.register_backend(
        NAME, lambda store, rank, size, timeout: Group(store, rank, size, timeout), devices=[NAME]
    )
