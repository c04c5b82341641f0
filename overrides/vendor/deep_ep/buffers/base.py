"""Lifecycle of a communication buffer and its one primitive, after ``deep_ep.buffers.base``.

Collectives allocate what they need, so a buffer holds no memory of its own; sizes are kept for callers that compare them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist


class _Runtime:
    """What a live buffer reports of itself."""

    def __init__(self, rank: int, ranks: int, device_bytes: int, host_bytes: int = 0) -> None:
        self.main_context: _Runtime | None = self
        self._sizes = f"rank {rank} of {ranks}: {device_bytes} bytes on the device, {host_bytes} on the host"

    def print_memory_usage(self) -> None:
        print(f"deep_ep buffer, {self._sizes}")

    def destroy(self) -> None:
        self.main_context = None


class BufferBase(ABC):
    """What all communication buffers share. ``runtime`` is None before construction and after ``destroy``."""

    group: Any = None
    rank_idx = 0
    num_ranks = 1

    def __init__(self, explicitly_destroy: bool = False):
        self.explicitly_destroy = explicitly_destroy
        self.runtime: _Runtime | None = None

    @property
    def main_context(self) -> Any:
        """The communication context, None after destruction."""
        return None if self.runtime is None else self.runtime.main_context

    def print_memory_usage(self) -> None:
        """Print the buffer's sizes."""
        assert self.runtime is not None, "the buffer is destroyed"
        self.runtime.print_memory_usage()

    @abstractmethod
    def destroy(self) -> None:
        """Release the buffer. Only for one made with ``explicitly_destroy``; a second call does nothing."""
        assert self.explicitly_destroy, "made without explicitly_destroy: the buffer goes with its last reference"
        if self.runtime is not None:
            self.runtime.destroy()
            self.runtime = None

    def _join(self, group: Any) -> None:
        self.group = group
        if group is not None:
            self.rank_idx, self.num_ranks = group.rank(), group.size()

    def _exchange(self, sent: torch.Tensor, in_background: bool = False) -> tuple[torch.Tensor, Any]:
        """Give ``sent[r]`` to rank r, get ``received[r]`` from it: int32 [ranks, ...] of one shape on all ranks.

        Returns ``received`` and the work to wait for, None when there is nothing to wait for.
        """
        if self.num_ranks == 1:
            return sent, None
        # Equal splits of integers: the one form that both gloo and the device's backend take.
        if self._exchanges_by_gather():
            gathered, _ = self._gather(sent)
            return gathered[:, self.rank_idx].contiguous(), None
        received = torch.empty_like(sent)
        background = in_background and not torch.compiler.is_compiling()
        work = dist.all_to_all_single(received.view(-1), sent.view(-1), group=self.group, async_op=background)
        return received, work

    def _gather(self, sent: torch.Tensor, in_background: bool = False) -> tuple[torch.Tensor, Any]:
        """[ranks, ...] of every rank's ``sent`` (int32, of one shape on all ranks), and the work to wait for as above."""
        received = torch.empty((self.num_ranks, *sent.shape), dtype=sent.dtype, device=sent.device)
        background = in_background and not torch.compiler.is_compiling()
        work = dist.all_gather_single(received.view(-1), sent.reshape(-1), group=self.group, async_op=background)
        return received, work

    def _exchanges_by_gather(self) -> bool:
        """The device's all_to_all needs more than two ranks."""
        # porter: ignore[PT101] a backend of torch.distributed, no place to allocate on
        return self.num_ranks == 2 and dist.get_backend(self.group) == "neuron"

    @staticmethod
    def _row_bytes(x: torch.Tensor) -> torch.Tensor:
        """uint8 [n, bytes] of ``x`` [n, w], a view if it is contiguous."""
        x = x.contiguous()
        if x.stride(1) != 1:
            # A single column may have any stride and still be contiguous, which a view of other elements trips over.
            x = x.clone(memory_format=torch.contiguous_format)
        # So may a single row: flattened, it has none.
        return x.view(-1).view(torch.uint8).view(x.shape[0], x.shape[1] * x.itemsize)
