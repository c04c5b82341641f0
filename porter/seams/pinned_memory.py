"""csrc/engine/input_metadata: host tensors are pinned only where pinning exists."""

from __future__ import annotations

from collections.abc import Callable

from porter.seams.cppsource import CppSource, cpp_edits
from porter.seams.model import Edit, Seam


def _find(function: str, header: str) -> Callable[[CppSource], tuple[Edit, ...]]:
    def edits(source: CppSource) -> tuple[Edit, ...]:
        argument = source.call_argument(source.function(function), "pinned_memory", "true")
        return (
            source.line_after(source.include(header), '#include "neuron/host_memory.hpp"'),
            source.replace(argument, "deepinfer::kPinHostMemory"),
        )

    return edits


OPTIONS_SEAM = Seam(
    "pinned-options",
    "csrc/engine/input_metadata/prepare_tensor_input_base.cpp",
    "no pinned memory on Neuron",
    cpp_edits(_find("pinned", '"prepare_tensor_input.hpp"')),
)
PLAN_SEAM = Seam(
    "pinned-load-plan",
    "csrc/engine/input_metadata/block_load_plan.cpp",
    "no pinned memory on Neuron",
    cpp_edits(_find("build", '"block_load_plan.hpp"')),
)
