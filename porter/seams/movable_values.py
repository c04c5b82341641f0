"""deepinfer/model_executor/utils.py: a ``Movable`` can be made inside a compiled graph.

Its constructor annotates what it stores with the class's type parameter, and so closes over it; Dynamo cannot carry a type
variable that it meets in a closure.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    init = source.function("__init__", source.class_("Movable"), parameters=["self", "value"])
    stored = m.Attribute(value=m.Name("self"), attr=m.Name("_value"))
    annotated = source.one(
        source.all(init, cst.AnnAssign, m.AnnAssign(target=stored, value=m.Name("value"))),
        "self._value: ... = value",
        init,
    )
    return (source.replace(annotated, "self._value = value"),)


SEAM = Seam(
    "movable-values",
    "deepinfer/model_executor/utils.py",
    "no type variable in a closure, which graph capture stops at",
    python_edits(_edits),
)
