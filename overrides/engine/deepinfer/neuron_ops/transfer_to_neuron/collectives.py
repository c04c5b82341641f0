"""``torch.distributed``: backend names, and data that the backends do not carry.

- ``nccl`` in a backend string becomes the target's backend.
- Data of a dtype that gloo refuses (int16, float8, ...) moves as bytes; no bit changes.
- Every group on the device gets a companion on the host with the same ranks. Integers are reduced there, since the
  Neuron compiler refuses to, and so are host values. int16 is reduced as int32. Reducing float8 is refused by torch.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend, real_device
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher

MOVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_to_all", "all_to_all_single", "broadcast", "gather", "irecv", "isend",
    "recv", "scatter", "send",
)  # fmt: skip
"""Collectives that only move data."""

REDUCTIONS = ("all_reduce", "reduce")
"""Collectives that reduce their first argument in place."""

_host_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Device group -> its companion on the host."""

_CARRIED = frozenset(
    (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    )
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

    new_group = dist.new_group
    replace("init_process_group", lambda original: _init_process_group(original, new_group, backend))
    replace("new_group", lambda original: _new_group(original, backend))
    for name in MOVES:
        if hasattr(dist, name):
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

    ``nccl`` -> ``gloo`` or ``neuron``; ``cpu:gloo,cuda:nccl`` -> ``cpu:gloo`` or ``cpu:gloo,neuron:neuron``. Other
    names stay.
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
    return backend.distributed if text.lower() == "nccl" else text


def _init_process_group(
    original: Callable[..., Any], new_group: Callable[..., Any], target: Backend
) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        mapped = map_backend(backend, target)
        device = target.map_device(kwargs.pop("device_id", None))
        if isinstance(device, int) or getattr(device, "index", None) is not None:
            kwargs["device_id"] = device
        original(mapped, *args, **kwargs)
        if _on_device(mapped):
            _give_companion(dist.group.WORLD, new_group(backend="gloo"))

    return init_process_group


def _new_group(original: Callable[..., Any], target: Backend) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **kwargs: Any
    ) -> Any:
        mapped = map_backend(backend, target)
        if mapped != backend:
            pg_options = None  # options of another backend's class
        group = original(ranks=ranks, timeout=timeout, backend=mapped, pg_options=pg_options, **kwargs)
        if _on_device(mapped):
            # A collective call, as new_group itself is: every rank makes both groups, in this order.
            _give_companion(group, original(ranks=ranks, timeout=timeout, backend="gloo", **kwargs))
        return group

    return new_group


def _on_device(backend: Any) -> bool:
    return isinstance(backend, str) and "neuron" in backend


def _give_companion(group: Any, companion: Any) -> None:
    if isinstance(group, dist.ProcessGroup):
        _host_groups[group] = companion


def _companion(group: Any) -> Any:
    """The host group of a device group, None for any other."""
    return _host_groups.get(dist.group.WORLD if group is None else group)


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
        return original(
            *(_carried_all(value) for value in args), **{key: _carried_all(value) for key, value in kwargs.items()}
        )

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
    signature = inspect.signature(original)

    @functools.wraps(original)
    def reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        integer = not tensor.is_floating_point() and not tensor.is_complex()
        if tensor.device.type == "neuron" and not integer:
            return original(tensor, *args, **kwargs)
        bound = signature.bind(tensor, *args, **kwargs)
        companion = _companion(bound.arguments.get("group"))
        widened = integer and tensor.dtype not in _CARRIED
        if companion is None and not widened:
            return original(tensor, *args, **kwargs)
        place = tensor.device
        if companion is not None:
            bound.arguments["group"], place = companion, real_device("cpu")
        value = tensor.to(device=place, dtype=torch.int32 if widened else tensor.dtype)
        asynchronous = bound.arguments.pop("async_op", False)
        original(**{**bound.arguments, "tensor": value})
        if value is not tensor:
            tensor.copy_(value)
        return DoneWork() if asynchronous else None

    return reduce
