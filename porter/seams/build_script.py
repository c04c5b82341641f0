"""setup.py: the host-only extension and Neuron's requirements."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    source.require_import("accelerator_kind")
    for name in ("COMMON_SOURCES", "CXX_FLAGS", "COMMON_LIBRARIES", "INCLUDE_DIRS"):
        source.assigned(source.module, name)
    branch = source.one(
        source.top_level(cst.If, m.If(test=m.Name("IS_NPU"))),
        "if IS_NPU: ...",
        source.module,
    )
    source.one(
        source.all(
            source.module,
            cst.Arg,
            m.Arg(keyword=m.Name("ext_modules"), value=m.List(elements=[m.Element(m.Name("deepinfer_extension"))])),
        ),
        "ext_modules=[deepinfer_extension]",
        source.module,
    )
    return (
        source.before(
            branch,
            """
            if accelerator_kind() == "neuron":
                import setup_neuron

                deepinfer_extension = setup_neuron.extension(COMMON_SOURCES, CXX_FLAGS, COMMON_LIBRARIES, INCLUDE_DIRS)
            """,
        ),
        source.insert_before(branch, "el"),
        source.at_body_start(
            source.function("get_requirements", parameters=[]),
            """
            if accelerator_kind() == "neuron":
                import setup_neuron

                return setup_neuron.requirements()
            """,
        ),
    )


SEAM = Seam(
    "build-script", "setup.py", "host-only extension -DWITH_NEURON; requirements-neuron.txt", python_edits(_edits)
)
