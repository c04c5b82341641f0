"""Keeps ``CUDA_VISIBLE_DEVICES``, which the engine reads as integers, and ``NEURON_RT_VISIBLE_CORES`` in step."""

from __future__ import annotations

from collections.abc import MutableMapping

from deep_cluster.hardware import neuron

CUDA_ENV = "CUDA_VISIBLE_DEVICES"


def align(environ: MutableMapping[str, str], *, target: str) -> None:
    """Set both variables to the same comma list of logical cores, before any runtime reads them.

    The Neuron variable wins where only it is set (ranges are written out), the CUDA one where only that is set.
    Where neither is set the process gets one core: ``LOCAL_RANK`` if a launcher set it, else core 0, as TorchNeuron
    itself chooses. The host standing in for a device never gets a Neuron variable that the user did not set.
    Raises RuntimeError where the two name different cores, ValueError where a list is not a valid core list.
    """
    cuda = environ.get(CUDA_ENV)
    cores = environ.get(neuron.VISIBLE_CORES_ENV)
    if cuda is not None and cores is not None:
        if neuron.format_visible_cores(cores) != _plain(cuda):
            raise RuntimeError(
                f"{CUDA_ENV}={cuda!r} must name the cores of {neuron.VISIBLE_CORES_ENV}={cores!r}, or be unset"
            )
        environ[CUDA_ENV] = neuron.format_visible_cores(cores)
        return
    if cores is not None:
        environ[CUDA_ENV] = neuron.format_visible_cores(cores)
    elif cuda is not None:
        if target == "neuron":
            environ[neuron.VISIBLE_CORES_ENV] = neuron.format_visible_cores(cuda)
    else:
        environ[CUDA_ENV] = environ.get("LOCAL_RANK", "0") if target == "neuron" else "0"
        if target == "neuron":
            environ[neuron.VISIBLE_CORES_ENV] = environ[CUDA_ENV]


def _plain(text: str) -> str:
    return ",".join(part.strip() for part in text.split(","))
