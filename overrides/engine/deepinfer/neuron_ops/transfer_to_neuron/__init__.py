"""Maps the CUDA names that DeepInfer uses onto its Neuron target: a NeuronCore, or the host standing in for one.

``install("neuron")`` or ``install("cpu")`` patches torch once, for the whole process and every thread; ``uninstall()``
puts the originals back. What is mapped:

- devices: ``"cuda"``, ``"cuda:N"`` and ``torch.device("cuda")`` wherever torch takes a device (``devices``,
  ``factories``), ``Tensor.to/cuda/is_cuda``, ``Module.to/cuda``, default devices, generators, autocast, loading;
- ``torch.cuda``: streams, events, memory figures, seeds, sync-debug mode (``cuda_names`` lists every name, mapped or
  refused with its reason);
- ``torch.distributed``: ``nccl`` in backend strings, dtypes that the backends do not carry, integer sums;
- pinned memory: a no-op, since neither target has any.

Stated policy for probes: ``torch.cuda.is_available()`` and ``is_initialized()`` answer False and ``device_count()``
answers 0, to everybody. There is no CUDA in this process, and libraries that ask (transformers, triton, xgrammar,
tilelang) must not take their CUDA branches; DeepInfer itself never needs a True. Where the host stands in,
``Tensor.is_cuda`` says True to DeepInfer's own modules and their vendor packages alone, since a host tensor that
claims CUDA would mislead everybody else.

Not mapped, because nothing in DeepInfer uses it: ``torch.cuda.FloatTensor`` and its kin, CUDA IPC, jiterator, NVTX
profiling, ``torch.backends.cuda`` switches (harmless to set).
"""

from __future__ import annotations

import logging
import sys
import threading

from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend, make_backend
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher

logger = logging.getLogger("deepinfer.neuron_ops")

_lock = threading.RLock()
_installed: tuple[Backend, Patcher] | None = None


def install(target: str) -> None:
    """Patch torch for ``target`` (``"neuron"`` or ``"cpu"``). A second call for the same target does nothing.

    The target is detected before anything is patched; if a patch fails, those before it are undone.
    Raises RuntimeError where the target is absent, or where another target is installed.
    """
    global _installed
    with _lock:
        if _installed is not None:
            if _installed[0].target != target:
                raise RuntimeError(
                    f"transfer_to_neuron is installed for {_installed[0].target!r}; uninstall() it first"
                )
            return
        from deepinfer.neuron_ops.transfer_to_neuron import (
            autocast,
            collectives,
            cuda_names,
            devices,
            dispatch_keys,
            factories,
            serialization,
            tensors,
        )

        backend = make_backend(target)
        patcher = Patcher()
        try:
            patcher.on_restore(_forget_compiler_rules)
            for part in (devices, factories, tensors, cuda_names, autocast, serialization, collectives, dispatch_keys):
                part.patch(patcher, backend)
        except BaseException:
            patcher.restore()
            raise
        _forget_compiler_rules()
        _installed = (backend, patcher)
        logger.info("torch.cuda names mapped onto %s (%d patches)", backend.device(None), len(patcher))


def uninstall() -> None:
    """Put torch back as it was. Does nothing where nothing is installed."""
    global _installed
    with _lock:
        if _installed is None:
            return
        _installed[1].restore()
        _installed = None


def _forget_compiler_rules() -> None:
    """Make torch.compile look its table of known functions up again, if it has done so already."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()


def installed_target() -> str | None:
    """The target that torch is patched for, or None."""
    return None if _installed is None else _installed[0].target
