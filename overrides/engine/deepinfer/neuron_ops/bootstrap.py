"""Runs inside ``import deepinfer`` on Neuron: defaults, vendor packages, this platform's extension folder.

Child processes import deepinfer too, so whatever is set up here holds in spawned and forked workers. No torch, no
device, no subprocess.
"""

from __future__ import annotations

import os

from deep_cluster.hardware import neuron
from deepinfer.neuron_ops import basic_mode, vendor_path


def start(package_path: list[str], extension_folder: str) -> None:
    """Prepare the process.

    Parameters:
        package_path: ``deepinfer.__path__``; ``extension_folder`` is moved to its front, so that an extension built
            for another accelerator beside it is not taken.
        extension_folder: the folder of this platform's compiled extension; it need not exist.

    Raises ValueError where ``DEEPINFER_NEURON_DEVICE`` is neither ``neuron`` nor ``cpu``.
    """
    basic_mode.install(os.environ, target=neuron.target())
    vendor_path.put_first()
    if os.path.isdir(extension_folder):
        package_path[:] = [extension_folder, *(entry for entry in package_path if entry != extension_folder)]
