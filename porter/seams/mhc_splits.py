"""deepinfer/model_executor/models/v4_modules/mhc_ops.py: mHC reduces in one split, as on Ascend."""

from __future__ import annotations

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    splits = source.function("default_n_splits", parameters=[])
    source.require_names(splits, ["N_SPLITS_ASCEND", "is_ascend"])
    source.assigned(source.module, "N_SPLITS_ASCEND")
    return (
        source.at_body_start(
            splits,
            """
            from deepinfer import PLATFORM

            if PLATFORM.is_neuron:
                return N_SPLITS_ASCEND
            """,
        ),
    )


SEAM = Seam(
    "mhc-splits",
    "deepinfer/model_executor/models/v4_modules/mhc_ops.py",
    "mHC's single-split reduction",
    python_edits(_edits),
)
