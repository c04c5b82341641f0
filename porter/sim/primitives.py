"""Operators with a kernel of their own: making tensors, views, resizing, and copies between devices.

Everything that torch composes (``select``, ``transpose``, ``zeros``, ``to``...) rests on these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from porter.sim import runtime
from porter.sim.errors import UnsupportedError
from porter.sim.storage import bytes_of, contiguous_strides, on_device, to_device, to_host
from porter.sim.versions import internal
from porter.sim.watchers import WATCHERS, Copy

_aten: Any = torch.ops.aten
_Plain: Any = internal("_C.DisableTorchFunction", "kernels that default devices do not touch")
_FORMATS = (None, torch.contiguous_format, torch.preserve_format)


def _check_format(memory_format: Any, operator: str) -> None:
    if memory_format not in _FORMATS:
        raise UnsupportedError(
            f"{operator}: memory format {memory_format} is not supported on Neuron",
            fix="use torch.contiguous_format and permute explicitly",
        )


def empty(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    """``aten::empty.memory_format``.

    Raises:
        UnsupportedError: channels-last.
    """
    _check_format(memory_format, "aten::empty")
    with _Plain():
        host = torch.empty(size, dtype=dtype or torch.get_default_dtype(), device="cpu")
        return to_device(host, runtime.index_of(device))


def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """``aten::empty_strided``."""
    with _Plain():
        host = torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype(), device="cpu")
        return to_device(host, runtime.index_of(device))


def efficient_zero_tensor(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """``aten::_efficientzerotensor``: torch's has no memory to share; this one has."""
    with _Plain():
        host = torch.zeros(size, dtype=dtype or torch.get_default_dtype(), device="cpu")
        return to_device(host, runtime.index_of(device))


def as_strided(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """``aten::as_strided``: a view on the same storage."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    result: torch.Tensor = _aten.as_strided_.default(_aten.alias.default(self), size, stride, offset)
    return result


def _like_meta(self: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    with _Plain():
        shape = make(torch.empty_strided(self.size(), self.stride(), dtype=self.dtype, device="meta"))
        return as_strided(self, shape.size(), shape.stride())


def view(self: torch.Tensor, size: Any) -> torch.Tensor:
    """``aten::view``."""
    return _like_meta(self, lambda meta: meta.view(size))


def reshape_alias(self: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    """``aten::_reshape_alias``."""
    return as_strided(self, size, stride)


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """``aten::unfold``."""
    return _like_meta(self, lambda meta: meta.unfold(dimension, size, step))


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``aten::_copy_from``: every copy in which the device takes part."""
    source_here, target_here = on_device(self), on_device(dst)
    if WATCHERS:
        kind = "on-device" if source_here and target_here else "to-host" if source_here else "to-device"
        for watcher in tuple(WATCHERS):
            watcher.copies(Copy(kind, self, dst))
    with _Plain():
        target = to_host(dst) if target_here else dst
        _aten.copy_.default(target, to_host(self) if source_here else self)
    return dst


def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """``aten::_copy_from_and_resize``."""
    if dst.shape != self.shape:
        dst.resize_(self.shape)
    return copy_from(self, dst)


def _become(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.data = other
    return self


def resize_(self: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    """``aten::resize_``. Beyond its storage a tensor moves to a new one; its views keep the old."""
    _check_format(memory_format, "aten::resize_")
    if list(self.shape) == list(size):
        return self
    with _Plain():
        needed = 1
        for extent in size:
            needed *= int(extent)
        if (self.storage_offset() + needed) * self.element_size() <= self.untyped_storage().nbytes():
            _aten.as_strided_.default(self, size, contiguous_strides(size), self.storage_offset())
            return self
        host = torch.empty(size, dtype=self.dtype, device="cpu")
        old = bytes_of(self.untyped_storage())[self.storage_offset() * self.element_size() :]
        if old.numel():
            new = bytes_of(host.untyped_storage())
            kept = min(old.numel(), new.numel())
            new[:kept].copy_(old[:kept])
        return _become(self, to_device(host, self.device.index or 0))


def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``aten::set_.source_Tensor``."""
    return _become(self, source)


def set_storage(self: torch.Tensor, source: Any, storage_offset: int, size: Any, stride: Any = ()) -> torch.Tensor:
    """``aten::set_.source_Storage_storage_offset``: load, deepcopy and rebuilt tensors come this way."""
    with _Plain():
        data = bytes_of(source)
        rest = data.numel() % self.element_size()
        flat = data[: data.numel() - rest].view(self.dtype)
        host = flat.as_strided(size, stride or contiguous_strides(size), storage_offset)
        return _become(self, to_device(host, self.device.index or 0))


def set_whole_storage(self: torch.Tensor, source: Any) -> torch.Tensor:
    """``aten::set_.source_Storage``."""
    return set_storage(self, source, 0, [source.nbytes() // self.element_size()])


def set_nothing(self: torch.Tensor) -> torch.Tensor:
    """``aten::set_``: an empty tensor."""
    with _Plain():
        return _become(self, to_device(torch.empty(0, dtype=self.dtype, device="cpu"), self.device.index or 0))


def record_stream(self: torch.Tensor, stream: Any) -> None:
    """``aten::record_stream``: memory is never reused early here."""


def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    """``aten::is_pinned``: device memory is not pinned host memory."""
    return False


KERNELS: dict[str, Callable[..., Any]] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "_efficientzerotensor": efficient_zero_tensor,
    "as_strided": as_strided,
    "view": view,
    "_reshape_alias": reshape_alias,
    "unfold": unfold,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "resize_": resize_,
    "set_": set_nothing,
    "set_.source_Tensor": set_tensor,
    "set_.source_Storage": set_whole_storage,
    "set_.source_Storage_storage_offset": set_storage,
    "record_stream": record_stream,
    "is_pinned": is_pinned,
}
