"""deepinfer/model_executor/layers/tilelang_ops/norm.py: the scales that a norm writes are reached without ``as_strided``.

A functional graph refuses a write through ``as_strided`` of a view. The same bytes are a transposed view as well.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    source.require_import("PLATFORM")
    allocate = source.function("_alloc_fp8_sf")
    source.require_names(allocate, ["storage", "packs", "m_pad", "pack_factor", "seqlen"])
    strided = m.Call(func=m.Attribute(attr=m.Name("as_strided")))
    packed = source.one(
        source.all(
            allocate, cst.Assign, m.Assign(targets=[m.AssignTarget(target=m.Name("kernel_arg"))], value=strided)
        ),
        "kernel_arg = ... .as_strided(...)",
        allocate,
    )
    return (
        source.after(
            packed,
            """
            if PLATFORM.is_neuron:
                kernel_arg = storage.view(torch.uint8).unflatten(-1, (m_pad, pack_factor))[:, :, :seqlen].transpose(1, 2)
            """,
        ),
    )


SEAM = Seam(
    "scale-views",
    "deepinfer/model_executor/layers/tilelang_ops/norm.py",
    "a norm's scales as a view that functional graphs can write to",
    python_edits(_edits),
)
