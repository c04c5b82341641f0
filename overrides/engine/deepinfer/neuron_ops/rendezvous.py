"""Where a process group of one meets itself."""

from __future__ import annotations

import os
import socket


def private_address(world_size: int) -> str | None:
    """A fresh local address for a world of one process, so that engines side by side do not collide on a fixed port.

    None where several processes must agree on one, or where the user named ``MASTER_PORT``.
    """
    if world_size != 1 or "MASTER_PORT" in os.environ:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
