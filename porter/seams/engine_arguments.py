"""deepinfer/engine/arg_utils.py: what basic mode leaves out is refused before the engine starts."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    arguments = source.class_("EngineArgs")
    source.require_fields(arguments, ["context_parallel_size"])
    return (
        source.at_body_start(
            source.function("__post_init__", arguments, ["self"]),
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import basic_mode

                basic_mode.check_engine_arguments(self)
            """,
        ),
    )


SEAM = Seam(
    "engine-arguments", "deepinfer/engine/arg_utils.py", "excluded features are refused at start", python_edits(_edits)
)
