"""deep_cluster/topology/bind.py: a device without a NUMA node binds nothing."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    bind = source.function("bind_numa", parameters=["node"])
    source.require_import("accelerator_kind")
    return (
        source.at_body_start(
            bind,
            """
            if node < 0 and accelerator_kind() == "neuron":
                return 0
            """,
        ),
    )


SEAM = Seam(
    "numa-binding", "deep_cluster/topology/bind.py", "no binding for a device without a NUMA node", python_edits(_edits)
)
