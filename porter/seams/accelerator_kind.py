"""deep_cluster/hardware/device.py: the kind ``neuron`` and its discovery."""

from __future__ import annotations

import libcst as cst

from porter.seams.model import AnchorError, Edit, Seam
from porter.seams.pysource import PythonSource, python_edits

_ROOT = ["_root"]
_ROOT_ENVIRON = ["_root", "_environ"]


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    kinds = source.assigned(source.module, "AcceleratorKind").value
    if not isinstance(kinds, cst.Subscript):
        raise AnchorError(source.line(kinds), "AcceleratorKind = Literal[...]", source.text(kinds))
    vendors = [
        alias
        for alias in source.imported_names("deep_cluster.hardware")
        if isinstance(alias.name, cst.Name) and alias.name.value == "nvidia"
    ]

    def at_start(name: str, parameters: list[str], code: str) -> Edit:
        return source.at_body_start(source.function(name, parameters=parameters), code)

    return (
        source.insert_before(
            source.one(vendors, "from deep_cluster.hardware import nvidia", source.module), "neuron, "
        ),
        source.insert_after(kinds.slice[-1].slice, ', "neuron"'),
        at_start(
            "accelerator_kind",
            _ROOT,
            """
            if neuron.is_selected():
                return "neuron"
            """,
        ),
        at_start(
            "physical_device_count",
            _ROOT,
            """
            if accelerator_kind(_root=_root) == "neuron":
                return neuron.physical_device_count(_root=_root)
            """,
        ),
        at_start(
            "visible_device_env_name",
            _ROOT,
            """
            if accelerator_kind(_root=_root) == "neuron":
                return neuron.VISIBLE_CORES_ENV
            """,
        ),
        at_start(
            "visible_device_ids",
            _ROOT_ENVIRON,
            """
            if accelerator_kind(_root=_root) == "neuron":
                return neuron.visible_device_ids(visible_devices(_root=_root, _environ=_environ), _root=_root)
            """,
        ),
        at_start(
            "set_visible_devices",
            ["target", *_ROOT_ENVIRON],
            """
            if accelerator_kind(_root=_root) == "neuron":
                target = neuron.format_visible_cores(target)
            """,
        ),
        at_start(
            "device_numa_node",
            ["index", "_root"],
            """
            if accelerator_kind(_root=_root) == "neuron":
                return neuron.device_numa_node(index, _root=_root)
            """,
        ),
        at_start(
            "get_bf16_tflops_limit",
            [],
            """
            if accelerator_kind() == "neuron":
                return neuron.get_bf16_tflops_limit()
            """,
        ),
    )


SEAM = Seam(
    "accelerator-kind",
    "deep_cluster/hardware/device.py",
    "accelerator kind neuron: devices, NUMA, limits",
    python_edits(_edits),
)
