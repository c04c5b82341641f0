"""The two targets behind the CUDA names: a NeuronCore through TorchNeuron, and the host."""

from __future__ import annotations

import importlib.util
import os
import re
from types import SimpleNamespace
from typing import Any

import torch
from deep_cluster.hardware import neuron
from deepinfer.neuron_ops.transfer_to_neuron.host import CurrentStream, HostEvent, HostStream, StreamContext

MEMORY_ENV = "DEEPINFER_NEURON_MEMORY_GB"
"""Memory that the engine may plan with, in GiB; wins over what the device reports."""

_GIB = 1 << 30
_HOST_MEMORY = 1 * _GIB

real_device = torch.device
"""torch's own device class, whatever ``torch.device`` is patched to."""

_CUDA_TEXT = re.compile(r"^cuda(?::(\d+))?$")


def native_neuron() -> bool:
    """Whether TorchNeuron (the PrivateUse1 device ``neuron``, not the old XLA package) is loaded."""
    return hasattr(torch, "neuron") and torch._C._get_privateuse1_backend_name() == "neuron"


def require_native_neuron() -> None:
    """Raise RuntimeError that says what to install where there is no native ``neuron`` device."""
    if native_neuron():
        return
    major_minor = ".".join(torch.__version__.split(".")[:2])
    wanted = f"torch-neuronx {major_minor}.* from the AWS Neuron package index (its releases carry torch's own version)"
    if importlib.util.find_spec("torch_neuronx") is None:
        raise RuntimeError(
            f"{neuron.TARGET_ENV}=neuron: torch has no device 'neuron'. Install {wanted}, on Linux x86_64 with the "
            f"Neuron driver and runtime; or set {neuron.TARGET_ENV}=cpu to run on the host"
        )
    if importlib.util.find_spec("torch_neuronx.neuron_dynamo_backend") is None:
        raise RuntimeError(
            f"{neuron.TARGET_ENV}=neuron: the installed torch-neuronx is the XLA package (2.9 or older), which has no "
            f"device 'neuron'. Uninstall it and install {wanted}; the two cannot share an environment"
        )
    raise RuntimeError(
        f"{neuron.TARGET_ENV}=neuron: torch-neuronx is installed but not loaded; torch loads it on import unless "
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set"
    )


class Backend:
    """What the CUDA names mean on one target. This base is the host; ``NeuronBackend`` overrides what differs."""

    target = "cpu"
    distributed = "gloo"
    event_class: type = HostEvent

    def __init__(self) -> None:
        self._streams = CurrentStream(HostStream())

    # ---- devices

    def device(self, index: int | None) -> torch.device:
        """The device that ``cuda`` (``index`` None) or ``cuda:index`` stands for."""
        return real_device("cpu")

    def map_device(self, value: Any) -> Any:
        """``value`` with CUDA replaced by the target; anything else is returned as it is."""
        if isinstance(value, str):
            match = _CUDA_TEXT.match(value) if value.startswith("cuda") else None
            return value if match is None else self.device(None if match.group(1) is None else int(match.group(1)))
        if isinstance(value, real_device):
            return self.device(value.index) if value.type == "cuda" else value
        return value

    def map_cuda_index(self, value: Any) -> torch.device:
        """The device of ``tensor.cuda(value)``: None, an index, or a device."""
        if value is None:
            return self.device(None)
        if isinstance(value, int):
            return self.device(value)
        return self.map_device(value)

    def map_device_type(self, value: Any) -> Any:
        """``"cuda"`` -> the target's device type; anything else as it is."""
        return self.target if value == "cuda" else value

    def current_device(self) -> int:
        """Index of the current device."""
        return 0

    def set_device(self, device: Any) -> None:
        """Make ``device`` current."""

    # ---- streams

    def current_stream(self, device: Any = None) -> Any:
        """This thread's current stream."""
        return self._streams.get()

    def set_stream(self, stream: Any) -> None:
        """Make ``stream`` current in this thread."""
        if stream is not None:
            self._streams.set(stream)

    def stream(self, stream: Any) -> Any:
        """Context manager of ``with torch.cuda.stream(stream)``."""
        return StreamContext(stream, self._streams)

    def make_stream(self, *args: Any, **kwargs: Any) -> Any:
        """A new stream."""
        return HostStream(*args, **kwargs)

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work."""

    # ---- memory, bytes

    def total_memory(self) -> int:
        """Memory that the engine may plan with."""
        override = os.environ.get(MEMORY_ENV)
        return int(float(override) * _GIB) if override else self._reported_memory()

    def _reported_memory(self) -> int:
        return _HOST_MEMORY

    def memory(self, name: str) -> int:
        """One of torch.cuda's figures ``memory_allocated``, ``max_memory_allocated``, ``memory_reserved``, ...

        The host reports no use: weights live in ordinary host memory, and the total above is the cache's budget.
        """
        return 0

    def free_memory(self) -> int:
        """Memory that nothing holds."""
        return self.total_memory()

    def empty_cache(self) -> None:
        """Hand cached memory back."""

    def reset_peak_memory(self) -> None:
        """Start the peak figures anew."""

    def properties(self) -> SimpleNamespace:
        """What ``get_device_properties`` answers. There are no multiprocessors; one stands for the core."""
        return SimpleNamespace(
            name=self.name(), total_memory=self.total_memory(), multi_processor_count=1, major=0, minor=0
        )

    def name(self) -> str:
        """What ``get_device_name`` answers."""
        return "Neuron on the host"

    # ---- random numbers

    def manual_seed(self, seed: int) -> None:
        """Seed the target's generator: the host's, on both targets (TorchNeuron draws on the host)."""
        torch.default_generator.manual_seed(int(seed))


class NeuronBackend(Backend):
    """A NeuronCore through ``torch.neuron``. What that module lacks is supplied from what it has."""

    target = "neuron"
    distributed = "neuron"

    def __init__(self) -> None:
        super().__init__()
        self._module: Any = torch.neuron  # type: ignore[attr-defined]
        self._index = 0
        self.event_class = make_event_class(getattr(self._module, "Event", None))

    def _native(self, name: str) -> Any:
        return getattr(self._module, name, None)

    def device(self, index: int | None) -> torch.device:
        return real_device("neuron", self._index if index is None else index)

    def current_device(self) -> int:
        return self._index

    def set_device(self, device: Any) -> None:
        # The runtime must not start before the process group does, so the core that is current anyway is not touched.
        index = self.map_cuda_index(device).index
        if index is not None and index != self._index:
            self._module.set_device(index)
            self._index = index

    def current_stream(self, device: Any = None) -> Any:
        native = self._native("current_stream")
        return super().current_stream(device) if native is None else native()

    def set_stream(self, stream: Any) -> None:
        native = self._native("set_stream")
        if native is None:
            super().set_stream(stream)
        elif stream is not None:
            native(stream)

    def stream(self, stream: Any) -> Any:
        native = self._native("stream")
        return super().stream(stream) if native is None else native(stream)

    def make_stream(self, *args: Any, **kwargs: Any) -> Any:
        native = self._native("Stream")
        if native is None:
            return super().make_stream(*args, **kwargs)
        return native(
            *(self.map_device(value) for value in args),
            **{key: self.map_device(value) for key, value in kwargs.items()},
        )

    def synchronize(self, device: Any = None) -> None:
        self._module.synchronize()

    def _reported_memory(self) -> int:
        native = self._native("get_device_properties")
        total = getattr(native(self._index), "total_memory", None) if native is not None else None
        return int(total) if total else neuron.memory_per_core()

    def memory(self, name: str) -> int:
        native = self._native(name)
        return int(native()) if native is not None else 0

    def free_memory(self) -> int:
        held = max(self.memory("memory_reserved"), self.memory("memory_allocated"))
        return max(self.total_memory() - held, 0)

    def empty_cache(self) -> None:
        native = self._native("empty_cache")
        if native is not None:
            native()

    def reset_peak_memory(self) -> None:
        native = self._native("reset_peak_memory_stats")
        if native is not None:
            native()

    def name(self) -> str:
        return f"neuron:{self._index}"

    def manual_seed(self, seed: int) -> None:
        native = self._native("manual_seed_all")
        if native is None:
            super().manual_seed(seed)
        else:
            native(int(seed))


def make_event_class(native: Any) -> type:
    """An event class over ``native``'s events, each made when it is first recorded, not when it is constructed.

    DeepInfer makes events while modules are imported; a device event then would start the runtime too early.
    """
    if native is None:
        return HostEvent

    class Event:
        """A device event."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self._options = {"enable_timing": enable_timing, "blocking": blocking}
            self._event: Any = None

        def _recorded(self) -> Any:
            if self._event is None:
                self._event = native(**self._options)
            return self._event

        def record(self, stream: Any = None) -> None:
            event = self._recorded()
            event.record() if stream is None else event.record(stream)

        def wait(self, stream: Any = None) -> None:
            if self._event is not None:
                self._event.wait() if stream is None else self._event.wait(stream)

        def synchronize(self) -> None:
            if self._event is not None:
                self._event.synchronize()

        def query(self) -> bool:
            return True if self._event is None else bool(self._event.query())

        def elapsed_time(self, end_event: Event) -> float:
            if self._event is None or end_event._event is None:
                raise RuntimeError("both events must be recorded before their time can be compared")
            return float(self._event.elapsed_time(end_event._event))

    return Event


def make_backend(target: str) -> Backend:
    """The backend of ``target``. Raises RuntimeError where the device is absent, ValueError for an unknown name."""
    if target == "cpu":
        return Backend()
    if target == "neuron":
        require_native_neuron()
        return NeuronBackend()
    raise ValueError(f"unknown target {target!r}: expected 'neuron' or 'cpu'")
