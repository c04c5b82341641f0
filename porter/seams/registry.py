"""All seams, in the order they are reported."""

from __future__ import annotations

from porter.seams import (
    accelerator_kind,
    build_script,
    device_choice,
    engine_arguments,
    engine_control,
    engine_helpers,
    index_logits,
    mhc_splits,
    moe_kernel,
    numa_binding,
    package_init,
    pinned_memory,
    platform_choice,
    slot_copies,
    source_archive,
    worker_threads,
)
from porter.seams.model import Seam

SEAMS: tuple[Seam, ...] = (
    package_init.SEAM,
    platform_choice.SEAM,
    accelerator_kind.SEAM,
    numa_binding.SEAM,
    engine_helpers.SEAM,
    engine_arguments.SEAM,
    engine_control.SEAM,
    worker_threads.SEAM,
    moe_kernel.SEAM,
    mhc_splits.SEAM,
    index_logits.SEAM,
    build_script.SEAM,
    source_archive.SEAM,
    device_choice.SEAM,
    slot_copies.SEAM,
    pinned_memory.OPTIONS_SEAM,
    pinned_memory.PLAN_SEAM,
)
