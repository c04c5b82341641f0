"""deepinfer/worker/base.py: torch settings of a worker."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    worker = source.class_("WorkerBase")
    init = source.function("_init_torch", worker, ["self"])
    source.require_names(init, ["set_num_threads", "set_num_interop_threads"])
    return (
        source.at_body_start(
            init,
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import host_threads

                host_threads.configure()
                return
            """,
        ),
    )


SEAM = Seam(
    "worker-threads",
    "deepinfer/worker/base.py",
    "thread counts that fit the machine; no CUDA allocator settings",
    python_edits(_edits),
)
