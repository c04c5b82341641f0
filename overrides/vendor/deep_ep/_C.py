"""Constants and the event of ``deep_ep._C``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

topk_idx_t = torch.int64


def get_num_allocation_alignment() -> int:
    """Bytes that a buffer's size is a multiple of."""
    return 2 * 1024 * 1024


def get_num_tma_alignment() -> int:
    """Bytes that the parts of a token in a buffer are aligned to."""
    return 32


def get_num_rdma_alignment() -> int:
    """Bytes that a token in a buffer, or an entry of a table, is aligned to."""
    return 64


class EventHandle:
    """A point in the order of work: whatever was started before it.

    Work on one device runs in order, so only collectives that were started without waiting need a wait.
    """

    def __init__(self, _works: Iterable[Any] = ()) -> None:
        self._works = [work for work in _works if work is not None]

    def current_stream_wait(self) -> None:
        """Wait for the collectives that the event stands for. A second call does nothing."""
        works, self._works = self._works, []
        for work in works:
            work.wait()
