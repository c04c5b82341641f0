"""The Neuron platform: Ascend's kernel layouts and code paths on a NeuronCore, or on the host standing in for one."""

from __future__ import annotations

import os
from typing import Any

from deep_cluster.hardware import neuron
from deepinfer.neuron_ops import basic_mode, visible_devices
from deepinfer.platform import Platform, PlatformEnum


class PlatformNeuron(Platform):
    """``DEEPINFER_ACCELERATOR=neuron``.

    ``is_npu`` is True, so that every layout and code path is Ascend's; what must differ asks ``is_neuron``.
    ``device`` is ``"neuron"`` or ``"cpu"`` (``DEEPINFER_NEURON_DEVICE``). Pinning host memory is the base class's
    no-op: neither target reads host memory directly.

    Making it patches torch for this process (``transfer_to_neuron``) and fixes the visible cores. Raises ValueError
    for an unknown target or core list, RuntimeError where TorchNeuron is missing or is the old XLA package or where
    two variables name different cores, NotImplementedError where the environment asks for an excluded feature.
    """

    enum = PlatformEnum.NPU
    tilelang_ops_backend = "neuron"

    def __init__(self) -> None:
        self.device: neuron.Target = neuron.target()
        basic_mode.refuse_excluded(os.environ)
        visible_devices.align(os.environ, target=self.device)

        import torch
        from deepinfer.neuron_ops import transfer_to_neuron

        transfer_to_neuron.install(self.device)
        self.distributed_backend = "neuron" if self.device == "neuron" else "gloo"
        self.fp8_sf_type = torch.int16

    @property
    def is_neuron(self) -> bool:
        return True

    def get_distributed_options(self) -> Any:
        """None: neither backend takes options."""
        return None

    def __repr__(self) -> str:
        return f"<PlatformNeuron device={self.device} ops={self.tilelang_ops_backend} distributed={self.distributed_backend}>"
