"""Which torch the simulated device stands on, and what it needs of its internals.

Checked in one place, so that a torch that moved something is named in the error instead of failing somewhere inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from porter.sim.errors import TorchInternalError

# Releases the device was made for: the two that TorchNeuron 2.33 is built on.
SUPPORTED = ((2, 13), (2, 14))


@dataclass(frozen=True)
class Internal:
    """A dotted name under ``torch``, what it is for, and the news that concerns it."""

    path: str
    purpose: str
    news: str = ""


NEEDED = (
    Internal("utils.backend_registration._setup_privateuseone_for_python_backend", "register a device from Python"),
    Internal("_C._acc.register_python_privateuseone_hook", "the device's hooks"),
    Internal("_C._acc.register_python_privateuseone_device_guard", "the device's guard"),
    Internal("_C._to_dlpack", "tensors that share host memory"),
    Internal("_C._from_dlpack", "tensors that share host memory"),
    Internal("_C.DisableTorchFunction", "kernels that default devices do not touch"),
    Internal("_C._should_allow_numbers_as_tensors", "numbers in place of tensors"),
    Internal("_C._ExcludeDispatchKeyGuard", "autocast"),
    Internal("library.fallthrough_kernel", "autocast"),
    Internal("serialization.register_package", "save and load"),
    Internal(
        "distributed.ProcessGroup", "collectives", "torch 2.13 renamed its methods (all_gather_single and others)"
    ),
    Internal("distributed.ProcessGroupGloo", "collectives"),
)


def release(version: str | None = None) -> tuple[int, int]:
    """(major, minor) of a torch version; of the running one by default.

    >>> release("2.14.1+cpu")
    (2, 14)
    """
    parts = (version or torch.__version__).split("+")[0].split(".")
    return int(parts[0]), int(parts[1])


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def explain(running: tuple[int, int]) -> str:
    """Which release is to blame for a missing internal.

    >>> explain((2, 12))
    'torch 2.12 is older than torch 2.13, the first with it'
    >>> explain((2, 15))
    'torch 2.15, or a release between it and 2.14, changed it'
    """
    first, last = SUPPORTED[0], SUPPORTED[-1]
    if running < first:
        return f"torch {_text(running)} is older than torch {_text(first)}, the first with it"
    if running > last:
        return f"torch {_text(running)}, or a release between it and {_text(last)}, changed it"
    return f"this build of torch {_text(running)} lacks it; releases {_text(first)} to {_text(last)} have it"


def internal(path: str, purpose: str = "", news: str = "") -> Any:
    """The torch internal of that dotted name.

    Raises:
        TorchInternalError: it is not there; names the torch release that changed it.
    """
    value: Any = torch
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            hint = f" ({news})" if news else ""
            raise TorchInternalError(
                f"torch.{path}, needed for {purpose or 'the simulated device'}, is missing: {explain(release())}{hint}",
                fix=f"use torch {' or '.join(_text(one) for one in SUPPORTED)}",
            ) from None
    return value


def check() -> None:
    """Raises: TorchInternalError, when a needed internal is not there."""
    for one in NEEDED:
        internal(one.path, one.purpose, one.news)
