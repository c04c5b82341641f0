"""A simulated Neuron device: ``torch.device("neuron")`` on host memory, in pure Python.

``install()`` puts it in place. It needs torch and nothing else, and no other part of porter imports it.
"""

from __future__ import annotations

from porter.sim.api import install
from porter.sim.errors import DeviceLimitError, SimError, StrictError, TorchInternalError, UnsupportedError

__all__ = ["DeviceLimitError", "SimError", "StrictError", "TorchInternalError", "UnsupportedError", "install"]
