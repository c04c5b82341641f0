"""Thread counts of a worker process."""

from __future__ import annotations

import contextlib
import os

import torch

MAX_THREADS = 8
"""As many as DeepInfer gives a worker elsewhere."""


def configure() -> None:
    """Bound torch's threads by the CPUs that this process may use; ``OMP_NUM_THREADS`` stays the user's word.

    The number of inter-operator threads can be set once a process, and only before the first use: a second engine
    keeps the first one's.
    """
    count = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)
    if torch.get_num_interop_threads() != count:
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(count)
