"""``torch.neuron``: the functions of TorchNeuron's device module, and which device is current.

Torch's Python hooks tell its C++ that device 0 is current; a process of the device has one core anyway. With more devices,
name the index.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from types import ModuleType, TracebackType
from typing import Any

import torch

from porter.sim import generators, streams
from porter.sim.errors import SimError
from porter.sim.memory import LEDGER
from porter.sim.names import NAME


@dataclass(frozen=True)
class Settings:
    """``devices``: cores that the process sees."""

    devices: int = 1


_settings = Settings()
_state = threading.local()
_started = False
_process = os.getpid()


def configure(devices: int) -> None:
    """Set how many devices there are."""
    global _settings
    _settings = replace(_settings, devices=devices)


def index_of(device: Any) -> int:
    """Index of a device, a name, a number or None (the current one); the runtime starts here.

    Raises:
        SimError: no such device, or another kind of device.
    """
    init()
    if device is None:
        return current_device()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != NAME:
            raise SimError(f"expected a {NAME} device, but got {device}")
        if device.index is None:
            return current_device()
        device = device.index
    index = int(device)
    if not 0 <= index < _settings.devices:
        raise SimError(
            f"invalid device ordinal {NAME}:{index}: the process sees {_settings.devices} device(s)",
            fix="porter.sim.install(devices=N) sees more",
        )
    return index


def is_available() -> bool:
    """Always."""
    return True


def is_initialized() -> bool:
    """Has a tensor been made, or ``init`` been called?"""
    return _started


def init() -> None:
    """Start the runtime.

    Raises:
        SimError: in a forked child of a process that started it.
    """
    global _started
    if _is_in_bad_fork():
        raise SimError(
            "Cannot re-initialize Neuron in a forked subprocess",
            fix="use the 'spawn' start method of multiprocessing",
        )
    _started = True


def _is_in_bad_fork() -> bool:
    return _started and os.getpid() != _process


def device_count() -> int:
    """Cores that this process sees."""
    return _settings.devices


def current_device() -> int:
    """Index of this thread's device."""
    return int(getattr(_state, "index", 0))


def set_device(device: Any) -> None:
    """Choose this thread's device."""
    _state.index = index_of(device)


def get_device_name(device: Any = None) -> str:
    """``neuron:N``; not a product's name."""
    return f"{NAME}:{index_of(device)}"


@dataclass(frozen=True)
class DeviceProperties:
    """``total_memory`` in bytes."""

    name: str
    total_memory: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name and memory."""
    return DeviceProperties(get_device_name(device), LEDGER.capacity)


class DeviceContext:
    """``with torch.neuron.device(index)``."""

    def __init__(self, device: Any) -> None:
        self.index = index_of(device)
        self._previous = 0

    def __enter__(self) -> DeviceContext:
        self._previous = current_device()
        _state.index = self.index
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _state.index = self._previous


class DeviceOf(DeviceContext):
    """``with torch.neuron.device_of(tensor)``."""

    def __init__(self, tensor: Any) -> None:
        on_device = isinstance(tensor, torch.Tensor) and tensor.device.type == NAME
        super().__init__(tensor.device if on_device else None)


def synchronize(device: Any = None) -> None:
    """Nothing to wait for."""
    index_of(device)


def wait_stream(stream: Any) -> None:
    """Nothing to wait for."""


def wait_event(event: Any) -> None:
    """Nothing to wait for."""


def record_event(event: Any = None) -> streams.Event:
    """Record an event on the current stream."""
    return streams.current_stream().record_event(event)


def query() -> bool:
    """Is all work done? It is."""
    return True


def memory_allocated(device: Any = None) -> int:
    """Bytes of live tensors."""
    return LEDGER.allocated(index_of(device))


def max_memory_allocated(device: Any = None) -> int:
    """Largest sum of bytes seen."""
    return LEDGER.peak(index_of(device))


def memory_stats(device: Any = None) -> dict[str, int]:
    """Figures under the names torch's devices use."""
    return LEDGER.statistics(index_of(device))


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The same as text."""
    return "\n".join(f"{name}: {value}" for name, value in memory_stats(device).items())


def reset_peak_memory_stats(device: Any = None) -> None:
    """The peak starts again."""
    LEDGER.reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sums over time start again."""
    LEDGER.reset_accumulated(index_of(device))


def empty_cache() -> None:
    """Nothing is cached."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types of autocast."""
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always."""
    return True


def manual_seed_all(seed: int) -> None:
    """Seed the generator that all devices share."""
    generators.manual_seed(seed)


def seed_all() -> None:
    """Seed it from the system's randomness."""
    generators.seed()


def _get_dynamo_metrics() -> dict[str, int]:
    from porter.sim.compile import REPORT

    return REPORT.metrics()


def _reset_dynamo_metrics() -> None:
    from porter.sim.compile import REPORT

    REPORT.clear()


def make_module() -> ModuleType:
    """The module that becomes ``torch.neuron``. What TorchNeuron lacks (capability, graphs, nvtx) is not there."""
    module = ModuleType("torch.neuron", "Device module of the simulated Neuron device.")
    here = globals()
    for name in (
        "is_available", "is_initialized", "init", "_is_in_bad_fork", "device_count", "current_device", "set_device",
        "get_device_name", "get_device_properties", "synchronize", "wait_stream", "wait_event", "record_event", "query",
        "memory_allocated", "max_memory_allocated", "memory_stats", "memory_summary", "reset_peak_memory_stats",
        "reset_accumulated_memory_stats", "empty_cache", "get_amp_supported_dtype", "is_bf16_supported",
        "manual_seed_all", "seed_all",
    ):  # fmt: skip
        setattr(module, name, here[name])
    extra: dict[str, Any] = {
        "_lazy_init": init, "device": DeviceContext, "device_of": DeviceOf, "Stream": streams.Stream,
        "Event": streams.Event, "stream": streams.StreamContext, "StreamContext": streams.StreamContext,
        "current_stream": streams.current_stream, "default_stream": streams.default_stream,
        "set_stream": streams.set_stream, "manual_seed": generators.manual_seed, "seed": generators.seed,
        "initial_seed": generators.initial_seed, "get_rng_state": generators.get_rng_state,
        "set_rng_state": generators.set_rng_state, "memory_reserved": memory_allocated,
        "max_memory_reserved": max_memory_allocated, "get_dynamo_metrics": _get_dynamo_metrics,
        "reset_dynamo_metrics": _reset_dynamo_metrics,
    }  # fmt: skip
    for name, value in extra.items():
        setattr(module, name, value)
    return module
