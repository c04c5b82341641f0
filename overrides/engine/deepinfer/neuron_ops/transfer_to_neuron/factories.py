"""torch functions that make tensors: their ``device`` is mapped, their ``pin_memory`` ignored."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher

FACTORIES = (
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like", "empty_permuted",
    "empty_quantized", "empty_strided", "eye", "from_file", "full", "full_like", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor", "sparse_bsc_tensor",
    "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
"""Functions of ``torch`` that take ``device``, by name."""

FFT_FACTORIES = ("fftfreq", "rfftfreq")
"""The same of ``torch.fft``."""

METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
"""Tensor methods that take ``device``."""


def patch(patcher: Patcher, backend: Backend) -> None:
    """Wrap every factory that this torch has."""
    for owner, names in ((torch, FACTORIES), (torch.fft, FFT_FACTORIES)):
        for name in names:
            if hasattr(owner, name):
                patcher.set(owner, name, wrap(getattr(owner, name), backend))
    for name in METHODS:
        patcher.set(torch.Tensor, name, wrap(getattr(torch.Tensor, name), backend))


def wrap(function: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    """``function`` with its keyword ``device`` mapped; torch takes it no other way."""

    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            device = kwargs.get("device")
            if device is not None:
                kwargs["device"] = backend.map_device(device)
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return mapped
