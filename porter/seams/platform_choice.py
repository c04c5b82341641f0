"""deepinfer/platform.py: the Neuron platform exists, and is chosen where the user asks for it."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    base = source.class_("Platform")
    source.require_absent("is_neuron", base)
    is_npu = source.function("is_npu", base, ["self"])
    choice = source.function("get_platform", parameters=[])
    source.require_names(choice, ["accelerator_kind", "PlatformNPU", "PlatformGPU"])
    return (
        source.after(
            is_npu,
            """
            @property
            def is_neuron(self) -> bool:
                return False
            """,
            blank_before=True,
        ),
        source.at_body_start(
            choice,
            """
            from deep_cluster.hardware import neuron

            if neuron.is_selected():
                from deepinfer.platform_neuron import PlatformNeuron

                return PlatformNeuron()
            """,
        ),
    )


SEAM = Seam(
    "platform-choice",
    "deepinfer/platform.py",
    "is_neuron on every platform; get_platform() may choose Neuron",
    python_edits(_edits),
)
