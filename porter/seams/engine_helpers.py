"""deepinfer/utils.py: CPU binding by NeuronCore, and a rendezvous that does not collide."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    bind = source.function("bind_cpu", parameters=["local_rank"])
    idle = source.function("get_idle_cpus", parameters=["local_rank"])
    address = source.function("get_distributed_init_method", parameters=["parallel_config"])
    return (
        source.at_body_start(
            bind,
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import cpu_binding

                cpu_binding.bind_worker(local_rank)
                return
            """,
        ),
        source.at_body_start(
            idle,
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import cpu_binding

                return cpu_binding.helper_cpus(local_rank, envs.DEEPINFER_SO_BUILDER_CPUS)
            """,
        ),
        source.at_body_start(
            address,
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import rendezvous

                private = rendezvous.private_address(parallel_config.world_size)
                if private is not None:
                    return private
            """,
        ),
    )


SEAM = Seam(
    "engine-helpers",
    "deepinfer/utils.py",
    "CPU binding by NeuronCore; a free port for a world of one",
    python_edits(_edits),
)
