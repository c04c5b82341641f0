"""Writes safetensors files, the same bytes for the same tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ITEM_SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file. ``data`` is little-endian bytes in row-major order; None means zeros."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors``, widest items first so that each is aligned, then by name. Zeros become holes in the file.

    Raises ValueError where a tensor's bytes are not its shape's.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-ITEM_SIZES[item[1].dtype], item[0]))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        if tensor.data is not None and len(tensor.data) != tensor.size:
            raise ValueError(f"{name}: {len(tensor.data)} bytes, expected {tensor.size}")
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.size],
        }
        end += tensor.size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, tensor in ordered:
            if tensor.data is None:
                file.seek(tensor.size, 1)
            else:
                file.write(tensor.data)
        file.truncate()
