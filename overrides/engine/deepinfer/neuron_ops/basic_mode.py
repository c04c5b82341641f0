"""Basic mode: what DeepInfer does on Neuron, as defaults for its environment variables, and what it refuses.

Defaults are written early (``import deepinfer``), so that the engine's own defaults find them set, and only where the
user set nothing. A feature left out of basic mode that the user asks for by name is an error when the platform or
the engine starts. Torch is not imported here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from deepinfer.neuron_ops.features import ENABLED


@dataclass(frozen=True)
class Switch:
    """One environment variable of one feature.

    ``default`` is what basic mode sets (None: nothing); ``is_off`` says whether a value leaves the feature off.
    """

    variable: str
    feature: str
    title: str
    default: str | None
    is_off: Callable[[str], bool]
    off_value: str = "0"


def _false(value: str) -> bool:
    return value in ("0", "", "false", "False")


def _true(value: str) -> bool:
    return not _false(value)


def _zero(value: str) -> bool:
    try:
        return float(value) == 0
    except ValueError:
        return True  # not a number: the engine's own parser says so, with its own words


SWITCHES = (
    Switch("DEEPINFER_ENFORCE_EAGER", "graphs", "graph capture", "1", _true, "1"),
    Switch("DEEPINFER_DFLASH_ENFORCE_EAGER", "graphs", "graph capture of the draft model", "1", _true, "1"),
    Switch("DEEPINFER_USE_NEXTN_DECODE", "mtp", "speculative decoding (MTP, DSpark)", "0", _zero),
    Switch("DEEPINFER_ENABLE_MTP_VARLEN", "mtp", "variable-length speculative decoding", "0", _false),
    Switch("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "zos", "zero-overhead scheduling", "0", _false),
    Switch("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "eplb", "expert load balancing (EPLB)", "0", _zero),
    Switch("DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", "eplb", "expert load balancing (EPLB)", "0", _false),
    Switch("DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "eplb", "redundant experts (EPLB)", "0", _zero),
    Switch(
        "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
        "yoco",
        "YOCO bounded replay",
        "off",
        lambda value: value == "off",
        "off",
    ),
    Switch("DEEPINFER_BATCH_INVARIANT", "batch-invariant", "batch-invariant mode", "0", _false),
    Switch("DEEPINFER_USE_MULTIMODAL_POOL", "vl", "vision input", "0", _false),
    Switch("DEEPINFER_ENABLE_MEMORY_TRACING", "memory-history", "CUDA memory history", "0", _false),
    Switch(
        "DEEPINFER_PROFILE_TORCH_CUDA_MEMORY", "memory-history", "CUDA memory history", None, lambda value: False, ""
    ),
)

DEFAULTS = {"DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": "1"}
"""Not features, but how Neuron runs: the n-gram tables live beside the other weights, as on Ascend."""

DEVICE_DEFAULTS = {"TORCH_NEURONX_SKIP_OP_PRECONDITIONS": "1"}
"""On the device alone: index operations do not read their bounds back to the host at every call."""

HOST_DEFAULTS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Where the host stands in: an installed device plugin stays unloaded, so that no NeuronCore is claimed."""


def install(environ: MutableMapping[str, str], *, target: str, enabled: frozenset[str] = ENABLED) -> None:
    """Set basic mode's defaults in ``environ`` where it has no value."""
    for switch in SWITCHES:
        if switch.default is not None and switch.feature not in enabled:
            environ.setdefault(switch.variable, switch.default)
    for name, value in {**DEFAULTS, **(HOST_DEFAULTS if target == "cpu" else DEVICE_DEFAULTS)}.items():
        environ.setdefault(name, value)


def refuse_excluded(environ: Mapping[str, str], *, enabled: frozenset[str] = ENABLED) -> None:
    """Raise NotImplementedError that lists every variable which asks for a feature outside basic mode."""
    asked = [
        f"{switch.variable}={environ[switch.variable]}: {switch.title}: not supported on Neuron (basic mode); "
        + (f"unset it or set it to {switch.off_value}" if switch.off_value else "unset it")
        for switch in SWITCHES
        if switch.feature not in enabled and switch.variable in environ and not switch.is_off(environ[switch.variable])
    ]
    if asked:
        raise NotImplementedError("\n".join(asked))


def check_engine_arguments(arguments: Any, *, enabled: frozenset[str] = ENABLED) -> None:
    """Raise NotImplementedError where engine arguments or the environment ask for what basic mode leaves out."""
    refuse_excluded(os.environ, enabled=enabled)
    if arguments.context_parallel_size > 1 and "cp" not in enabled:
        raise NotImplementedError(
            f"context_parallel_size={arguments.context_parallel_size}: context parallelism: "
            "not supported on Neuron (basic mode); set it to 1"
        )


def refuse_images(
    multi_modal_data: Mapping[str, Any] | None,
    extra: Mapping[str, Any] | None = None,
    *,
    enabled: frozenset[str] = ENABLED,
) -> None:
    """Raise NotImplementedError where a request brings images."""
    if "vl" in enabled:
        return
    for data in (multi_modal_data, (extra or {}).get("multi_modal_data")):
        if data and any(value is not None and (not hasattr(value, "__len__") or len(value)) for value in data.values()):
            raise NotImplementedError(
                "multi_modal_data: vision input: not supported on Neuron (basic mode); send text only"
            )


def vision_enabled() -> bool:
    """Whether requests may bring images."""
    return "vl" in ENABLED
