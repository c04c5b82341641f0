"""``torch.load``: ``map_location``, and storages that were saved on CUDA."""

from __future__ import annotations

import functools
from typing import Any

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend, real_device
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher
from torch import serialization as torch_serialization

_CUDA_PRIORITY = 20
"""Priority of torch's own reader of CUDA tags; smaller ones are asked first, and no two may be equal."""


def patch(patcher: Patcher, backend: Backend) -> None:
    """Wrap ``torch.load`` and read storages tagged ``cuda`` onto the target."""
    load = torch.load

    @functools.wraps(load)
    def mapped_load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):  # storage tag -> where it goes
            map_location = {tag: _text(backend.map_device(place)) for tag, place in map_location.items()}
        return load(f, backend.map_device(map_location), *args, **kwargs)

    patcher.set(torch, "load", mapped_load)
    patcher.set(torch_serialization, "load", mapped_load)

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        return storage if backend.target == "cpu" else _to_device(storage, backend)

    before = list(torch_serialization._package_registry)
    taken = {entry[0] for entry in before}
    priority = next(number for number in range(_CUDA_PRIORITY - 1, -_CUDA_PRIORITY, -1) if number not in taken)
    torch_serialization.register_package(priority, lambda storage: None, restore)
    added = [entry for entry in torch_serialization._package_registry if entry not in before]

    def undo() -> None:
        for entry in added:
            torch_serialization._package_registry.remove(entry)

    patcher.on_restore(undo)


def _text(place: Any) -> Any:
    return str(place) if isinstance(place, real_device) else place


def _to_device(storage: torch.UntypedStorage, backend: Backend) -> torch.UntypedStorage:
    flat = torch.empty(0, dtype=torch.uint8)
    flat.set_(storage)
    return flat.to(backend.device(None)).untyped_storage()
