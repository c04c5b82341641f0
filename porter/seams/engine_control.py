"""deepinfer/engine/llm_engine.py: votes of the data-parallel ranks stay on the host; no vision worker; no images."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits

_ZOS = m.Attribute(value=m.Name("envs"), attr=m.Name("DEEPINFER_ZERO_OVERHEAD_SCHEDULING"))


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    engine = source.class_("LLMEngine")
    init = source.function("__init__", engine)
    vision = source.assigned(init, "mm_enabled")
    add = source.function("add_request", engine)
    source.require_names(add, ["multi_modal_data", "extra"])
    return (
        *_platform_import(source),
        source.after(
            vision,
            """
            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import basic_mode

                mm_enabled = mm_enabled and basic_mode.vision_enabled()
            """,
        ),
        source.at_body_start(
            add,
            """
            if PLATFORM.is_neuron:
                from deepinfer.neuron_ops import basic_mode

                basic_mode.refuse_images(multi_modal_data, extra)
            """,
        ),
        _host_vote(source, source.function("_create_scheduler", engine, ["self"])),
        _host_vote(source, source.function("has_unfinished_requests", engine, ["self"])),
    )


def _platform_import(source: PythonSource) -> tuple[Edit, ...]:
    names = source.imported_names("deepinfer")
    if any(isinstance(alias.name, cst.Name) and alias.name.value == "PLATFORM" for alias in names):
        return ()
    return (source.insert_before(names[0], "PLATFORM, "),)


def _host_vote(source: PythonSource, function: cst.FunctionDef) -> Edit:
    """The choice between the host's and the device's group, by zero-overhead scheduling: also the host's on Neuron."""
    source.require_names(function, ["cpu_data_parallel_group", "data_parallel_group"])
    tests = [
        *(node.test for node in source.all(function, cst.IfExp, m.IfExp(test=_ZOS))),
        *(node.test for node in source.all(function, cst.If, m.If(test=_ZOS))),
    ]
    test = source.one(tests, "a choice by envs.DEEPINFER_ZERO_OVERHEAD_SCHEDULING", function)
    return source.insert_after(test, " or PLATFORM.is_neuron")


SEAM = Seam(
    "engine-control",
    "deepinfer/engine/llm_engine.py",
    "rank votes on the host; no vision worker, no images",
    python_edits(_edits),
)
