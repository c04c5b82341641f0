"""deepinfer/model_executor/models/v4_modules/index_attn.py: the decode indexer calls deep_gemm by its published signatures."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    source.require_import("PLATFORM")
    attention = source.class_("MQA")
    on_gpu = m.Attribute(value=m.Name("PLATFORM"), attr=m.Name("is_gpu"))
    choice = m.IfExp(test=on_gpu)
    found = []
    for method in ("_get_decode_metadata", "_compute_decode_p_sum"):
        function = source.function(method, attention)
        found.append(
            source.one(source.all(function, cst.IfExp, choice), "an argument chosen by PLATFORM.is_gpu", function)
        )
    return tuple(source.replace(node.test, "(PLATFORM.is_gpu or PLATFORM.is_neuron)") for node in found)


SEAM = Seam(
    "index-logits",
    "deepinfer/model_executor/models/v4_modules/index_attn.py",
    "the indexer's paged logits by deep_gemm's published signatures",
    python_edits(_edits),
)
