"""Tensors of the device on host memory.

A DLPack capsule of a CPU tensor, its device type rewritten, comes back as a tensor of the device: the same memory, with a
storage, strides and views of its own. Rewritten the other way it gives the CPU tensor that the kernels compute on.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from porter.sim.memory import LEDGER
from porter.sim.names import NAME
from porter.sim.versions import internal

_HOST, _DEVICE = 1, 12  # kDLCPU, kDLExtDev
_TYPE_AT, _INDEX_AT = 8, 12  # offsets in DLTensor: data pointer, then device type and device index, 32 bits each
_to_dlpack: Any = internal("_C._to_dlpack", "tensors that share host memory")
_from_dlpack: Any = internal("_C._from_dlpack", "tensors that share host memory")
_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_word = ctypes.c_int32


def on_device(value: object) -> bool:
    """Is it a tensor of the device?"""
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _renamed(tensor: torch.Tensor, device_type: int, index: int) -> torch.Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    # Lazy conjugates and negatives: the memory is that of the plain tensor, the mark is put back.
    if tensor.is_conj():
        plain = _renamed(torch.ops.aten._conj.default(tensor), device_type, index)
        return torch.ops.aten._conj.default(plain)  # type: ignore[no-any-return]
    if tensor.is_neg():
        plain = _renamed(torch.ops.aten._neg_view.default(tensor), device_type, index)
        return torch.ops.aten._neg_view.default(plain)  # type: ignore[no-any-return]
    capsule = _to_dlpack(tensor)
    address = _pointer(capsule, b"dltensor")
    _word.from_address(address + _TYPE_AT).value = device_type
    _word.from_address(address + _INDEX_AT).value = index
    renamed: torch.Tensor = _from_dlpack(capsule)
    if renamed.stride() != tensor.stride():
        # DLPack does not carry the strides of dimensions of size 1.
        torch.ops.aten.as_strided_.default(renamed, tensor.size(), tensor.stride(), renamed.storage_offset())
    return renamed


def to_device(host: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A device tensor on the memory of a CPU tensor."""
    tensor = _renamed(host, _DEVICE, index)
    LEDGER.note(tensor.untyped_storage(), index)
    return tensor


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the memory of a device tensor."""
    return _renamed(tensor, _HOST, 0)


def bytes_of(storage: Any) -> torch.Tensor:
    """The bytes of a storage of any device as a CPU uint8 tensor on the same memory; keeps the storage alive."""
    size = storage.nbytes()
    if not size:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    buffer: Any = (ctypes.c_uint8 * size).from_address(storage.data_ptr())
    buffer.owner = storage
    return torch.frombuffer(buffer, dtype=torch.uint8, count=size)


def storage_on_device(storage: Any, index: int = 0, *, copy: bool = False) -> Any:
    """A storage of the device holding the bytes of ``storage``; on the same memory unless ``copy``."""
    if storage.device.type == NAME and not copy:
        return storage
    data = bytes_of(storage)
    return to_device(data.clone() if copy else data, index).untyped_storage()


def contiguous_strides(size: Any) -> list[int]:
    """Row-major strides.

    >>> contiguous_strides([2, 3, 4])
    [12, 4, 1]
    """
    strides, step = [], 1
    for extent in reversed(list(size)):
        strides.append(step)
        step *= max(int(extent), 1)
    return strides[::-1]
