"""What torch's Python device hooks leave out, filled at the level of its API.

Storages (there is no allocator to make them, and torch would crash), pinned memory, ``torch.accelerator``, generators.
"""

from __future__ import annotations

from typing import Any

import torch

from porter.sim import generators, runtime, streams
from porter.sim.names import NAME
from porter.sim.storage import bytes_of, storage_on_device


def _is_ours(device: Any) -> bool:
    if device is None:
        return False
    return (device.type if isinstance(device, torch.device) else str(device).partition(":")[0]) == NAME


def _patch_storage_new() -> None:
    original = torch.UntypedStorage.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_ours(device):
            if device is not None:
                kwargs["device"] = device
            return original(cls, *args, **kwargs)
        host = original(cls, *args, **kwargs)
        return storage_on_device(host, runtime.index_of(device))

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """The arguments were for ``__new__``."""

    torch.UntypedStorage.__new__ = new  # type: ignore[method-assign]
    torch.UntypedStorage.__init__ = init  # type: ignore[method-assign]


def _patch_storage_moves() -> None:
    base: Any = torch.storage._StorageBase
    to, clone, resize, cpu = base.to, base.clone, torch.UntypedStorage.resize_, base.cpu

    def new_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if _is_ours(device):
            if self.device.type == NAME:
                return self
            return storage_on_device(self, runtime.index_of(device), copy=True)
        if self.device.type == NAME:
            host = new_cpu(self)
            return host if torch.device(device).type == "cpu" else to(host, device=device, non_blocking=non_blocking)
        return to(self, device=device, non_blocking=non_blocking)

    def new_clone(self: Any) -> Any:
        if self.device.type == NAME:
            return storage_on_device(self, self.device.index or 0, copy=True)
        return clone(self)

    def new_cpu(self: Any) -> Any:
        if self.device.type == NAME:
            return bytes_of(self).clone().untyped_storage()
        return cpu(self)

    def new_resize(self: Any, size: int) -> Any:
        if self.device.type == NAME and int(size) != self.nbytes():
            from porter.sim.errors import UnsupportedError

            raise UnsupportedError("a storage of the simulated device keeps its size", fix="resize the tensor instead")
        return resize(self, size)

    base.to, base.clone, base.cpu = new_to, new_clone, new_cpu
    untyped: Any = torch.UntypedStorage
    untyped.resize_ = new_resize


def _tag(storage: Any) -> str | None:
    return f"{NAME}:{storage.device.index or 0}" if storage.device.type == NAME else None


def _restore(storage: Any, location: Any) -> Any:
    return storage_on_device(storage, runtime.index_of(str(location))) if _is_ours(location) else None


def _patch_accelerator() -> None:
    accelerator: Any = torch.accelerator
    names: dict[str, Any] = {
        "synchronize": runtime.synchronize,
        "set_device_index": runtime.set_device,
        "set_device_idx": runtime.set_device,
        "current_device_index": runtime.current_device,
        "current_device_idx": runtime.current_device,
        "device_count": runtime.device_count,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "empty_cache": runtime.empty_cache,
        "memory_stats": runtime.memory_stats,
        "memory_allocated": runtime.memory_allocated,
        "max_memory_allocated": runtime.max_memory_allocated,
        "memory_reserved": runtime.memory_allocated,
        "max_memory_reserved": runtime.max_memory_allocated,
        "reset_peak_memory_stats": runtime.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": runtime.reset_accumulated_memory_stats,
    }
    for owner in (accelerator, getattr(accelerator, "memory", None)):
        for name, value in names.items():
            if owner is not None and hasattr(owner, name):
                setattr(owner, name, value)


def _patch_pinning() -> None:
    tensor: Any = torch.Tensor

    def pin_memory(self: Any, device: Any = None) -> Any:
        return self

    tensor.pin_memory = pin_memory


def fill() -> None:
    """Fill every hole."""
    _patch_storage_new()
    _patch_storage_moves()
    _patch_accelerator()
    _patch_pinning()
    torch.serialization.register_package(5, _tag, _restore)
    torch.Generator = generators.Generator  # type: ignore[assignment,misc]
