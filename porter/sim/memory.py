"""How much device memory lives: bytes of the storages that the device handed out.

Figures are of host memory that stands for the device's. A storage is known to be gone when someone asks, so the peak is
the largest sum seen when memory was handed out or asked for.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from torch.multiprocessing import reductions

from porter.sim.watchers import WATCHERS, Event, tell

_Reference: Any = reductions.StorageWeakRef

# One logical core's memory of a Trainium 2 chip: 96 GiB over four (LNC=2).
CAPACITY = 24 << 30


@dataclass
class Ledger:
    """Live storages of every device index. ``capacity``: bytes a device has."""

    capacity: int = CAPACITY
    _live: list[tuple[Any, int, int]] = field(default_factory=list)
    _allocated: dict[int, int] = field(default_factory=dict)
    _peak: dict[int, int] = field(default_factory=dict)
    _total: dict[int, int] = field(default_factory=dict)
    _count: dict[int, int] = field(default_factory=dict)
    _threshold: int = 1024
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, storage: Any, index: int) -> None:
        """A storage was handed out on device ``index``."""
        size = int(storage.nbytes())
        with self._lock:
            self._live.append((_Reference(storage), size, index))
            self._allocated[index] = self._allocated.get(index, 0) + size
            self._total[index] = self._total.get(index, 0) + size
            self._count[index] = self._count.get(index, 0) + 1
            if len(self._live) >= self._threshold or self._allocated[index] > self._peak.get(index, 0):
                if len(self._live) >= self._threshold:
                    self._prune()
                    self._threshold = max(1024, 2 * len(self._live))
                self._peak[index] = max(self._peak.get(index, 0), self._allocated[index])
            full = self._allocated[index] > self.capacity
            if full and WATCHERS:
                self._prune()
                full = self._allocated[index] > self.capacity
        if full:
            tell(Event("NCC_EOOM001", "aten::empty", f"{self._allocated[index]} bytes of {self.capacity}"))

    def _prune(self) -> None:
        kept = []
        for reference, size, index in self._live:
            if reference.expired():
                self._allocated[index] -= size
            else:
                kept.append((reference, size, index))
        self._live = kept

    def allocated(self, index: int = 0) -> int:
        """Bytes alive on device ``index``."""
        with self._lock:
            self._prune()
            return self._allocated.get(index, 0)

    def peak(self, index: int = 0) -> int:
        """Largest sum of bytes seen since the last reset; an upper bound between two looks."""
        return max(self._peak.get(index, 0), self.allocated(index))

    def reset_peak(self, index: int = 0) -> None:
        """The peak starts again from what is alive."""
        self._peak[index] = self.allocated(index)

    def reset_accumulated(self, index: int = 0) -> None:
        """Sums over time start again."""
        self._total[index] = self._count[index] = 0

    def statistics(self, index: int = 0) -> dict[str, int]:
        """Under the names that torch's devices use."""
        current, peak = self.allocated(index), self.peak(index)
        return {
            "allocated_bytes.all.current": current,
            "allocated_bytes.all.peak": peak,
            "allocated_bytes.all.allocated": self._total.get(index, 0),
            "allocation.all.allocated": self._count.get(index, 0),
            "reserved_bytes.all.current": current,
            "reserved_bytes.all.peak": peak,
        }


LEDGER = Ledger()
