"""The numbers behind every estimate: named, sourced, in one table, and replaceable by your own measurements."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from porter.sim.errors import SimError


@dataclass(frozen=True)
class Constant:
    """``value`` in ``unit``; ``source``: who published or measured it."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


_ARCHITECTURE = "AWS Neuron documentation, Trainium2 architecture: {} a chip; four logical cores a chip (LNC=2)"
_PERF = "measured on trn2.3xlarge, torch-neuronx 2.12 pre-releases (xpu_perf, Neuron notes)"

TABLE: tuple[Constant, ...] = (
    Constant("dispatch_us", 60.0, "us", "one operator from Python to the device, at least (55 to 65 measured)", _PERF),
    Constant(
        "round_trip_us", 1600.0, "us", "one host wait or copy, whatever its size (geometric mean of 700 and 3500)",
        "measured on torch-neuronx 2.14.3 (deep_ep_trn, docs/trn2-constraints)",
    ),
    Constant(
        "host_bytes_per_us", 800.0, "bytes/us", "an operator that goes by the host (0.8 GB/s, scatter by the host)", _PERF
    ),
    Constant(
        "memory_bytes_per_us", 725_000.0, "bytes/us", "device memory of one logical core", _ARCHITECTURE.format("2.9 TB/s")
    ),
    Constant(
        "bf16_flops_per_us", 166.75e6, "flop/us", "products of 16-bit floats", _ARCHITECTURE.format("667 TFLOPS")
    ),
    Constant("fp32_flops_per_us", 45.25e6, "flop/us", "products of 32-bit floats", _ARCHITECTURE.format("181 TFLOPS")),
    Constant(
        "link_bytes_per_us", 320_000.0, "bytes/us", "between chips, one core's share", _ARCHITECTURE.format("1.28 TB/s")
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """The table's values, by name. Times in microseconds."""

    dispatch_us: float = TABLE[0].value
    round_trip_us: float = TABLE[1].value
    host_bytes_per_us: float = TABLE[2].value
    memory_bytes_per_us: float = TABLE[3].value
    bf16_flops_per_us: float = TABLE[4].value
    fp32_flops_per_us: float = TABLE[5].value
    link_bytes_per_us: float = TABLE[6].value


def rates_from(values: Mapping[str, Any], *, path: str | None = None) -> Rates:
    """Rates with some values replaced.

    Raises:
        SimError: an unknown name, or a value that is not a number above zero.
    """
    known = {one.name for one in fields(Rates)}
    for name, value in values.items():
        if name not in known:
            raise SimError(f"unknown rate {name!r}", path=path, fix=f"one of {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise SimError(f"{name} is {value!r}; expected a number above zero", path=path)
    return replace(Rates(), **{name: float(value) for name, value in values.items()})


def read_rates(path: Path) -> Rates:
    """Rates from a TOML or JSON file of names and values.

    Raises:
        SimError: the file cannot be read, or see ``rates_from``.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise SimError(f"the rates cannot be read: {error}", path=str(path)) from error
    if not isinstance(values, dict):
        raise SimError("expected names and values", path=str(path))
    return rates_from(values, path=str(path))
