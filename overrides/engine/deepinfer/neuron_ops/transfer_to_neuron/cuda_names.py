"""Every name of ``torch.cuda`` that is mapped, and those that are refused with their reason.

A mapped name behaves on the target as far as the engine can tell; a refused one raises NotImplementedError when it is
called (not when it is looked up: annotations name classes that never run).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend
from deepinfer.neuron_ops.transfer_to_neuron.host import HostStream, StreamContext
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher, class_proxy, eager_only

_NO_GRAPHS = "graph capture is CUDA's; basic mode runs eagerly"
_NO_HISTORY = "allocator history is recorded by CUDA's allocator alone"

REFUSED: Mapping[str, str] = {
    "CUDAGraph": _NO_GRAPHS,
    "graph": _NO_GRAPHS,
    "graph_pool_handle": _NO_GRAPHS,
    "make_graphed_callables": _NO_GRAPHS,
    "cudart": "there is no CUDA runtime; host memory is pinned through PLATFORM.pin_host_memory, a no-op here",
    "memory._record_memory_history": _NO_HISTORY,
    "memory._dump_snapshot": _NO_HISTORY,
}
"""``torch.cuda.<name>`` -> why it cannot be."""

_CLASSES = {"CUDAGraph", "graph"}
_SUBMODULES = ("memory", "random", "graphs", "streams")
_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}
_MEMORY_FIGURES = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def mapped(backend: Backend) -> dict[str, Any]:
    """``torch.cuda.<name>`` -> what it is on ``backend``'s target."""
    sync_mode = [0]

    def set_sync_debug_mode(debug_mode: int | str) -> None:
        sync_mode[0] = _SYNC_MODES[debug_mode] if isinstance(debug_mode, str) else int(debug_mode)

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        torch.default_generator.set_state(new_state)

    def set_rng_state_all(new_states: Any) -> None:
        for state in new_states:
            torch.default_generator.set_state(state)

    def seed() -> None:
        backend.manual_seed(torch.default_generator.seed())

    names: dict[str, Any] = {
        # probes: there is no CUDA, see the package's policy
        "is_available": lambda: False,
        "is_initialized": lambda: False,
        "device_count": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: False,
        "get_arch_list": list,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        # devices
        "current_device": backend.current_device,
        "set_device": backend.set_device,
        "device": _device_context(backend, lambda value: value),
        "device_of": _device_context(backend, lambda value: value.device if isinstance(value, torch.Tensor) else None),
        "get_device_name": lambda device=None: backend.name(),
        "get_device_capability": lambda device=None: (0, 0),
        "get_device_properties": lambda device=None: backend.properties(),
        "can_device_access_peer": lambda device, peer_device: False,
        "synchronize": backend.synchronize,
        "ipc_collect": lambda: None,
        # streams and events
        "Event": backend.event_class,
        "Stream": class_proxy(_stream_class(backend), backend.make_stream),
        "StreamContext": class_proxy(StreamContext, backend.stream),
        "stream": backend.stream,
        "current_stream": backend.current_stream,
        "default_stream": backend.current_stream,
        "set_stream": backend.set_stream,
        "is_current_stream_capturing": lambda: False,
        "get_sync_debug_mode": lambda: sync_mode[0],
        "set_sync_debug_mode": set_sync_debug_mode,
        # memory
        "mem_get_info": lambda device=None: (backend.free_memory(), backend.total_memory()),
        "empty_cache": backend.empty_cache,
        "reset_peak_memory_stats": lambda device=None: backend.reset_peak_memory(),
        "reset_accumulated_memory_stats": lambda device=None: None,
        "reset_max_memory_allocated": lambda device=None: backend.reset_peak_memory(),
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: "",
        **{name: _figure(backend, name) for name in _MEMORY_FIGURES},
        # random numbers: drawn on the host
        "manual_seed": backend.manual_seed,
        "manual_seed_all": backend.manual_seed,
        "seed": seed,
        "seed_all": seed,
        "initial_seed": lambda: torch.default_generator.initial_seed(),
        "get_rng_state": lambda device="cuda": torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
        "default_generators": (torch.default_generator,),
    }
    return {name: _marked(name, value) for name, value in names.items()}


def patch(patcher: Patcher, backend: Backend) -> None:
    """Put the mapped and the refused names into ``torch.cuda`` and the submodules that hold them too."""
    for name, value in mapped(backend).items():
        _set_everywhere(patcher, name, value)
    for name, reason in REFUSED.items():
        _set_everywhere(patcher, name, refusal(name, reason))


def refusal(name: str, reason: str) -> Any:
    """A stand-in for ``torch.cuda.<name>`` that raises NotImplementedError with ``reason``."""
    text = f"torch.cuda.{name}: not supported on Neuron (basic mode): {reason}"
    if name in _CLASSES:

        def init(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError(text)

        return type(name, (), {"__init__": init, "__module__": "torch.cuda", "__doc__": text})

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(text)

    refused.__name__ = refused.__qualname__ = name.split(".")[-1]
    return refused


def _set_everywhere(patcher: Patcher, dotted: str, value: Any) -> None:
    *path, name = dotted.split(".")
    owners = [torch.cuda] if not path else []
    for submodule in path or _SUBMODULES:
        owner = getattr(torch.cuda, submodule, None)
        if owner is not None and name in vars(owner) and (path or not isinstance(vars(owner)[name], type(torch))):
            owners.append(owner)
    for owner in owners:
        patcher.set(owner, name, value)


def _marked(name: str, value: Any) -> Any:
    """A function in the likeness of the CUDA one, that torch.compile does not trace into.

    It carries the original as ``__wrapped__``: torch's compiler looks through some of these names when it is imported.
    """
    if isinstance(value, type) or not callable(value):
        return value

    def function(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **kwargs)

    original = getattr(torch.cuda, name, None)
    if original is not None:
        functools.update_wrapper(function, original)
    return eager_only(function)


def _figure(backend: Backend, name: str) -> Callable[..., int]:
    return lambda device=None: backend.memory(name)


def _device_context(backend: Backend, device_of: Callable[[Any], Any]) -> type:
    """``with torch.cuda.device(d)``: ``d`` is current inside."""

    class device:
        def __init__(self, value: Any) -> None:
            self._value = device_of(value)
            self._before = 0

        def __enter__(self) -> None:
            self._before = backend.current_device()
            if self._value is not None:
                backend.set_device(self._value)

        def __exit__(self, *exc: object) -> None:
            backend.set_device(self._before)

    return device


def _stream_class(backend: Backend) -> type:
    """The class whose instances ``isinstance(x, torch.cuda.Stream)`` accepts."""
    native = getattr(getattr(torch, "neuron", None), "Stream", None) if backend.target == "neuron" else None
    return native if isinstance(native, type) else HostStream
