"""``torch.device`` and the places where torch keeps a device: default device, device contexts, generators."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._device as torch_device_utils
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend, real_device
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher, class_proxy


def patch(patcher: Patcher, backend: Backend) -> None:
    """Replace ``torch.device``, ``torch.Generator``, ``torch.Stream``, ``torch.Event`` and the default-device calls."""
    # Collected once and cached by torch: it must hold the original factories, which is what a device context sees.
    torch_device_utils._device_constructors()

    patcher.set(
        torch,
        "device",
        class_proxy(real_device, lambda *args, **kwargs: backend.map_device(real_device(*args, **kwargs))),
    )

    real_generator = torch.Generator

    def make_generator(device: Any = "cpu") -> torch.Generator:
        mapped = backend.map_device(device)
        # TorchNeuron draws on the host, from the host's generators.
        return real_generator("cpu" if real_device(mapped).type == "neuron" else mapped)

    patcher.set(torch, "Generator", class_proxy(real_generator, make_generator))

    real_stream, real_event = torch.Stream, torch.Event

    def make_stream(device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _names_cuda(device):
            return backend.make_stream()
        return real_stream(device, *args, **kwargs) if device is not None else real_stream(*args, **kwargs)

    def make_event(device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _names_cuda(device):
            return backend.event_class(*args, **kwargs)
        return real_event(device, *args, **kwargs) if device is not None else real_event(*args, **kwargs)

    patcher.set(torch, "Stream", class_proxy(real_stream, make_stream))
    patcher.set(torch, "Event", class_proxy(real_event, make_event))

    context = torch_device_utils.DeviceContext
    enter_context = context.__init__

    @functools.wraps(enter_context)
    def context_init(self: Any, device: Any) -> None:
        enter_context(self, backend.map_device(device))

    patcher.set(context, "__init__", context_init)

    set_default_device = torch.set_default_device
    get_device_module = torch.get_device_module

    @functools.wraps(get_device_module)
    def mapped_get_device_module(device: Any = None) -> Any:
        # torch.cuda itself, whose names are mapped; asked first, so that torch's cache learns nothing that is only
        # true while the patch lasts.
        return torch.cuda if _names_cuda(device) else get_device_module(device)

    @functools.wraps(set_default_device)
    def mapped_set_default_device(device: Any) -> None:
        set_default_device(backend.map_device(device))

    patcher.set(torch, "set_default_device", mapped_set_default_device)
    patcher.set(torch, "get_device_module", mapped_get_device_module)


def _names_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.split(":")[0] == "cuda") or (
        isinstance(device, real_device) and device.type == "cuda"
    )
