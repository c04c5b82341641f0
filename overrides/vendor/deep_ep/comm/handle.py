"""How many ranks share what, after ``deep_ep.comm.handle``.

Ranks of one host share a fast domain (the physical one). Collectives of ``torch.distributed`` cross hosts by themselves, so there is
one level of communication (the logical domain) whatever the hosts.
"""

from __future__ import annotations

import os
from typing import Any


def get_physical_domain_size(group_or_buffer: Any) -> tuple[int, int]:
    """Number of fast domains and ranks in each, of a process group or a buffer; None stands for one rank.

    Ranks of a host are those that the launcher's LOCAL_WORLD_SIZE counts; all of them where it says nothing.
    """
    ranks = _ranks(group_or_buffer)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return (ranks // local, local) if 0 < local < ranks and ranks % local == 0 else (1, ranks)


def get_logical_domain_size(group_or_buffer: Any, allow_hybrid_mode: bool | None = None) -> tuple[int, int]:
    """Number of levels across and ranks in one, of a process group or a buffer: always one level of all ranks."""
    return 1, _ranks(group_or_buffer)


def _ranks(group_or_buffer: Any) -> int:
    if group_or_buffer is None:
        return 1
    ranks = getattr(group_or_buffer, "num_ranks", None)
    return int(group_or_buffer.size() if ranks is None else ranks)
