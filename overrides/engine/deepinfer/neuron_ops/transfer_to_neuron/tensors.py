"""Tensor methods and properties that name CUDA, pinned memory, and storages that the device cannot resize."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend, real_device
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher
from torch._subclasses.functional_tensor import FunctionalTensor

ENGINE_MODULES = ("deepinfer", "deep_cluster", "deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels")
"""Packages whose questions are about the target; everybody else's are about CUDA."""


def patch(patcher: Patcher, backend: Backend) -> None:
    """Patch Tensor, FunctionalTensor and, on the device, UntypedStorage."""
    patcher.set(torch.Tensor, "to", make_to(torch.Tensor.to, backend))
    patcher.set(torch.Tensor, "cuda", make_cuda(torch.Tensor.to, backend))
    patcher.set(FunctionalTensor, "cuda", make_cuda(FunctionalTensor.to, backend))
    patcher.set(torch.Tensor, "is_cuda", make_is_cuda(backend))
    patcher.set(torch.Tensor, "pin_memory", lambda self, device=None: self)
    patcher.set(torch.Tensor, "is_pinned", lambda self, device=None: False)
    patcher.set(torch.Tensor, "record_stream", lambda self, stream: None)
    if backend.target == "neuron":
        patcher.set(torch.UntypedStorage, "resize_", make_resize(torch.UntypedStorage.resize_))


def make_to(original: Any, backend: Backend) -> Any:
    """``Tensor.to`` with its device mapped.

    A copy from the device to the host blocks: an asynchronous one needs pinned memory on the host's side.
    """

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and isinstance(args[0], (str, real_device)):
            args = (backend.map_device(args[0]), *args[1:])
            destination: Any = args[0]
        else:
            destination = kwargs.get("device")
            if destination is not None:
                destination = kwargs["device"] = backend.map_device(destination)
        if destination is not None and self.device.type == "neuron" and real_device(destination).type == "cpu":
            if kwargs.get("non_blocking"):
                kwargs["non_blocking"] = False
            elif len(args) > 2:
                args = (*args[:2], False, *args[3:])
        return original(self, *args, **kwargs)

    return to


def make_cuda(to: Any, backend: Backend) -> Any:
    """``Tensor.cuda`` as a move to the target."""

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        return to(self, backend.map_cuda_index(device), non_blocking=non_blocking, memory_format=memory_format)

    return cuda


def make_is_cuda(backend: Backend) -> property:
    """``Tensor.is_cuda``: whether the tensor is on the target, as far as the asker may know."""
    if backend.target == "neuron":
        return property(lambda self: self.device.type == "neuron")
    return property(lambda self: self.device.type == "cpu" and _asked_by_engine())


def _asked_by_engine() -> bool:
    module = sys._getframe(2).f_globals.get("__name__", "")
    return module.split(".")[0] in ENGINE_MODULES


def make_resize(original: Any) -> Any:
    """``UntypedStorage.resize_``: emptying a device storage that cannot be resized leaves it to its tensors' end."""

    @functools.wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        try:
            return original(self, size)
        except (RuntimeError, NotImplementedError):
            if size != 0 or self.device.type != "neuron":
                raise
            return self

    return resize_
