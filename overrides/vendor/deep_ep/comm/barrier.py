"""A barrier of a buffer's ranks, after ``deep_ep.comm.barrier``."""

from __future__ import annotations

from typing import Any


def barrier(
    buffer: Any,
    wait_comm_stream: bool = True,
    with_cpu_sync: bool = False,
    sequential: bool = True,
    context_idx: int | None = None,
) -> None:
    """Wait until every rank of ``buffer`` is here. There is one stream and one context, so the other arguments choose nothing."""
    if buffer.num_ranks > 1:
        buffer.group.barrier().wait()
