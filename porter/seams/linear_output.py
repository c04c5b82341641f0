"""deepinfer/model_executor/layers/linear.py: a linear layer's output is flattened without ``as_strided``.

A functional graph refuses a write through ``as_strided`` of a view; the rows of the output lie evenly, so flattening its
leading dimensions is a view too.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    source.require_import("PLATFORM")
    flatten = source.function("_flatten_output", source.class_("ReplicatedLinear"), parameters=["self", "output"])
    strided = m.Return(value=m.Call(func=m.Attribute(value=m.Name("output"), attr=m.Name("as_strided"))))
    returned = source.one(source.all(flatten, cst.Return, strided), "return output.as_strided(...)", flatten)
    return (
        source.before(
            returned,
            """
            if PLATFORM.is_neuron:
                return output.flatten(0, -2)
            """,
        ),
    )


SEAM = Seam(
    "linear-output",
    "deepinfer/model_executor/layers/linear.py",
    "a linear layer's output as a view that functional graphs can write to",
    python_edits(_edits),
)
