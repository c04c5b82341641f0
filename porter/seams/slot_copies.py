"""csrc/engine/scheduler.hpp: slots are copied through tensor views instead of device pointers."""

from __future__ import annotations

from porter.seams.cppsource import CppSource, cpp_edits
from porter.seams.model import Edit, Seam

_PARAMETERS = ["states", "blocks", "clone_states", "clone_blocks", "zero_states"]


def _edits(source: CppSource) -> tuple[Edit, ...]:
    function = source.function("clone_and_zero_states_and_blocks", _PARAMETERS)
    body = source.body(function)
    source.mentions(function, ["cuda_copy_async", "get_current_stream", "make_tuple"])
    opening, closing = source.wrap_body(
        body,
        f"""
#ifdef WITH_NEURON
    return deepinfer::neuron::clone_and_zero_states_and_blocks({", ".join(_PARAMETERS)});
#else
""",
        """
#endif
""",
    )
    return (
        source.line_after(
            source.include('"../utils/log.hpp"'),
            """
#ifdef WITH_NEURON
#include "neuron/slots.hpp"
#endif
""",
        ),
        opening,
        closing,
    )


SEAM = Seam(
    "slot-copies", "csrc/engine/scheduler.hpp", "slot copies and zeroing through tensor views", cpp_edits(_edits)
)
