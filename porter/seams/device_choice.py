"""csrc/cuda_utils.hpp: the device that C++ allocates on."""

from __future__ import annotations

from porter.seams.cppsource import CppSource, cpp_edits
from porter.seams.model import Edit, Seam


def _edits(source: CppSource) -> tuple[Edit, ...]:
    choice = source.function("get_default_device", [])
    switch = source.conditional(choice, "WITH_NPU")
    return (
        source.line_after(
            source.include("<torch/extension.h>"),
            """
#ifdef WITH_NEURON
#include "neuron/target.hpp"
#endif
""",
        ),
        source.replace_line(
            switch,
            """#if defined(WITH_NEURON)
    return deepinfer::neuron::target_device();
#elif defined(WITH_NPU)""",
        ),
    )


SEAM = Seam("device-choice", "csrc/cuda_utils.hpp", "C++ allocates on the Neuron target", cpp_edits(_edits))
