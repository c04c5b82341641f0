"""The platform object that upstream's dispatcher and tests see, when the tree does not bring its own.

``tilelang_ops_backend`` is always ``neuron``; the flavour says which of ``is_npu`` and ``is_gpu`` holds and how packed
scales are typed, which decides upstream's code paths and test cases.
"""

from __future__ import annotations

import importlib
from typing import Any

from porter.verify.errors import HarnessError

BACKEND_NAME = "neuron"


def install_platform(flavour: str) -> Any:
    """Replace ``deepinfer.platform.get_platform`` and bind ``deepinfer.PLATFORM``; gives the platform object.

    Must run before any module of deepinfer that reads ``PLATFORM`` is imported.
    """
    import torch

    module: Any = importlib.import_module("deepinfer.platform")
    package: Any = importlib.import_module("deepinfer")
    kind = {"npu": module.PlatformEnum.NPU, "gpu": module.PlatformEnum.GPU}[flavour]

    class HarnessPlatform(module.Platform):  # type: ignore[misc]  # known at run time only
        enum = kind
        tilelang_ops_backend = BACKEND_NAME
        distributed_backend = "gloo"
        fp8_sf_type = torch.int16 if flavour == "npu" else torch.int32

        def get_distributed_options(self) -> object:
            return None

    platform = HarnessPlatform()
    module.get_platform = lambda: platform
    package.PLATFORM = platform
    return platform


def check_platform(flavour: str) -> Any:
    """The tree's own platform, when it brings one.

    Raises:
        HarnessError: it is not the Neuron platform, or not like the flavour asked for.
    """
    package: Any = importlib.import_module("deepinfer")
    platform = package.PLATFORM
    if platform.tilelang_ops_backend != BACKEND_NAME:
        raise HarnessError(
            f"the tree's platform picks the backend {platform.tilelang_ops_backend!r}, expected {BACKEND_NAME!r}"
        )
    if flavour != "npu" or not platform.is_npu:
        raise HarnessError(
            f"the tree's own platform cannot be judged as {flavour!r}", fix="verify with the npu flavour"
        )
    return platform


def install_extension() -> bool:
    """Stand-ins for the container types of ``deepinfer._C.engine`` that the tests' modules import, where it is not
    built. True when they were needed. Two are really used (by construction and attribute); the others only named."""
    import sys
    import types
    from dataclasses import make_dataclass

    try:
        importlib.import_module("deepinfer._C.engine")
        return False
    except ImportError:
        pass

    def opaque(name: str) -> type:
        def refuse(self: object, *args: object, **kwargs: object) -> None:
            raise HarnessError(f"deepinfer._C.engine.{name} is a stand-in; build the extension to use it")

        return type(name, (), {"__init__": refuse, "__module__": "deepinfer._C.engine"})

    module = types.ModuleType("deepinfer._C.engine")
    fields = {
        "LogitsTransformInputs": ("temperatures", "top_ps", "top_ks"),
        "SamplingKernelInputs": ("logits", "seq_seeds", "sample_positions"),
    }
    for name, names in fields.items():
        setattr(module, name, make_dataclass(name, names, frozen=True, eq=False))
    for name in (
        "DecodeSamplingInputs",
        "DriverSamplingInputs",
        "PrefillSamplingInputs",
        "PromptLogprobInputs",
        "SamplerInputs",
        "SpeculativeSamplingInputs",
    ):
        setattr(module, name, opaque(name))
    package = types.ModuleType("deepinfer._C")
    package.__path__ = []
    package.engine = module  # type: ignore[attr-defined]
    sys.modules["deepinfer._C"] = package
    sys.modules["deepinfer._C.engine"] = module
    return True
