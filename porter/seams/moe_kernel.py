"""deepinfer/model_executor/models/v4_modules/mlp.py: the MoE runs without the mega kernel, and frees its input on the device."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    source.require_import("PLATFORM")
    moe = source.class_("DeepseekMoE")
    init = source.function("__init__", moe)
    choice = source.assigned(init, "self.use_mega_moe")
    forward = source.function("routed_experts_forward", moe)
    empty = m.Assign(value=m.Call(func=m.Attribute(value=m.Name("torch"), attr=m.Name("Tensor")), args=[]))
    by_type = m.If(
        test=m.Call(func=m.Name("isinstance"), args=[m.Arg(m.Name("hidden_states")), m.Arg(m.Name("tuple"))]),
        body=m.IndentedBlock(body=[m.SimpleStatementLine(body=[empty])]),
    )
    release = source.one(source.all(forward, cst.If, by_type), "an if that empties hidden_states", forward)
    return (
        source.after(
            choice,
            """
            if PLATFORM.is_neuron:
                self.use_mega_moe = False
            """,
        ),
        source.before(
            release,
            """
            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import device_memory

                device_memory.release(hidden_states)
            """,
        ),
        source.insert_before(release, "el"),
    )


SEAM = Seam(
    "moe-kernel",
    "deepinfer/model_executor/models/v4_modules/mlp.py",
    "no mega kernel; the experts' input is released on its own device",
    python_edits(_edits),
)
