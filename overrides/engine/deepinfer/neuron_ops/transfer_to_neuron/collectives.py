"""``torch.distributed``: backend names, and data that the backends do not carry.

- ``nccl`` in a backend string becomes the target's backend. A group on the device also gets a host backend, so that
  host values need no device round trip.
- Data of a dtype that gloo refuses (int16, float8, ...) moves as bytes; no bit changes.
- Sums, minima and maxima of integers on the device go through the host: the Neuron compiler refuses them. int16 is
  reduced as int32. Reducing float8 is refused by torch itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher

MOVES = (
    "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast", "gather", "irecv", "isend",
    "recv", "scatter", "send",
)  # fmt: skip
"""Collectives that only move data."""

REDUCTIONS = ("all_reduce", "reduce")
"""Collectives that reduce their first argument in place."""

_CARRIED = frozenset(
    (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
)


def patch(patcher: Patcher, backend: Backend) -> None:
    """Wrap group creation, moves and reductions."""
    if not dist.is_available():
        return
    c10d = dist.distributed_c10d

    def replace(name: str, make: Callable[[Any], Any]) -> None:
        wrapped = make(getattr(dist, name))
        for owner in (dist, c10d):
            patcher.set(owner, name, wrapped)

    replace("init_process_group", lambda original: _init_process_group(original, backend))
    replace("new_group", lambda original: _new_group(original, backend))
    for name in MOVES:
        replace(name, _as_bytes)
    for name in REDUCTIONS:
        replace(name, _reduced)
    mesh = dist.device_mesh
    original_mesh = mesh.init_device_mesh

    @functools.wraps(original_mesh)
    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original_mesh(backend.map_device_type(device_type), *args, **kwargs)

    for owner in (dist, mesh):
        if hasattr(owner, "init_device_mesh"):
            patcher.set(owner, "init_device_mesh", init_device_mesh)


def map_backend(text: Any, backend: Backend) -> Any:
    """A backend string with CUDA's names replaced.

    ``nccl`` -> ``gloo`` or ``cpu:gloo,neuron:neuron``; ``cpu:gloo,cuda:nccl`` -> ``cpu:gloo`` or
    ``cpu:gloo,neuron:neuron``; ``neuron`` gains its host half. Other names stay.
    """
    if not isinstance(text, str):
        return text
    if ":" in text:
        pairs: dict[str, str] = {}
        for part in text.split(","):
            device, _, name = part.strip().partition(":")
            device = backend.map_device_type(device)
            pairs.setdefault(device, backend.distributed if name.lower() == "nccl" else name)
        return ",".join(f"{device}:{name}" for device, name in pairs.items())
    if text.lower() in ("nccl", "neuron"):
        return "gloo" if backend.target == "cpu" else "cpu:gloo,neuron:neuron"
    return text


def _init_process_group(original: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(group_backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        named = kwargs.pop("backend", group_backend)
        if "device_id" in kwargs:
            device = backend.map_device(kwargs.pop("device_id"))
            if isinstance(device, int) or getattr(device, "index", None) is not None:
                kwargs["device_id"] = device
        original(map_backend(named, backend), *args, **kwargs)

    return init_process_group


def _new_group(original: Callable[..., Any], target: Backend) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **kwargs: Any) -> Any:
        mapped = map_backend(backend, target)
        if mapped != backend:
            pg_options = None  # options of another backend's class
        return original(ranks=ranks, timeout=timeout, backend=mapped, pg_options=pg_options, **kwargs)

    return new_group


def _carried(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a byte view of it with one dimension more where its dtype cannot travel."""
    if tensor.dtype in _CARRIED or tensor.is_complex() or not tensor.is_contiguous():
        return tensor
    return tensor.unsqueeze(-1).view(torch.uint8)


def _carried_all(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _carried(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(_carried_all(item) for item in value)
    return value


def _as_bytes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def move(*args: Any, **kwargs: Any) -> Any:
        return original(*(_carried_all(value) for value in args), **{key: _carried_all(value) for key, value in kwargs.items()})

    return move


class DoneWork:
    """The handle of a collective that has already finished."""

    def wait(self, timeout: Any = None) -> bool:
        """True."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True


def _reduced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        integer = not tensor.is_floating_point() and not tensor.is_complex()
        on_device = tensor.device.type == "neuron"
        if not integer or not (on_device or tensor.dtype not in _CARRIED):
            return original(tensor, *args, **kwargs)
        wide = tensor.to(device="cpu", dtype=tensor.dtype if tensor.dtype in _CARRIED else torch.int32)
        asynchronous = kwargs.pop("async_op", False)
        original(wide, *args, **kwargs)
        tensor.copy_(wide)
        return DoneWork() if asynchronous else None

    return reduce
