"""The device map: upstream's tests, and a few of its interface functions, say ``cuda``; here that is another device.

What takes a device is rewritten on its way into torch: literals and device objects in the arguments of torch functions
(a torch function mode; ``torch.device`` is one of them), ``Tensor.cuda``, ``torch.set_default_device``,
``torch.Generator`` (which stays a class: torch itself uses it in annotations) and ``torch.cuda.synchronize``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SOURCE = "cuda"


def map_device(value: Any, target: torch.device) -> Any:
    """``target`` for a ``cuda`` device or its name, anything else as it is."""
    if isinstance(value, torch.device):
        return target if value.type == SOURCE else value
    if isinstance(value, str) and (value == SOURCE or value.startswith(SOURCE + ":")):
        return target
    return value


class DeviceMode(TorchFunctionMode):
    """Rewrites ``cuda`` in the arguments of torch functions. A CPU generator drawing for another device draws on the
    CPU, and the result is moved."""

    def __init__(self, target: torch.device) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if getattr(func, "__name__", "") == "cuda" and args and isinstance(args[0], torch.Tensor):
            return args[0].to(self.target)
        if (
            func is torch.device
            and (args or "type" in named)
            and map_device(args[0] if args else named["type"], self.target) is self.target
        ):
            return self.target
        mapped = tuple(map_device(arg, self.target) if isinstance(arg, (str, torch.device)) else arg for arg in args)
        if "device" in named:
            named["device"] = map_device(named["device"], self.target)
        generator = named.get("generator")
        if (
            isinstance(generator, torch._C.Generator)
            and generator.device.type != self.target.type
            and "device" in named
        ):
            wanted, named["device"] = named["device"], generator.device
            return func(*mapped, **named).to(wanted)
        return func(*mapped, **named)


def _generator_class(target: torch.device) -> type:
    original = torch.Generator
    home = target if target.type in ("cpu", "cuda") else torch.device("cpu")

    class _Meta(type):
        def __call__(cls, device: Any = "cpu") -> Any:
            return original(device=map_device(device, home))

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(metaclass=_Meta):
        """Stands for ``torch.Generator``: makes real ones, on the device that ``cuda`` stands for."""

    return Generator


class DeviceMap:
    """Installs and removes the map. One at a time; ``reset`` drops a default device that a test left behind."""

    def __init__(self, target: str) -> None:
        self.target = torch.device(target)
        self._mode = DeviceMode(self.target)
        self._restore: list[tuple[Any, str, Any]] = []
        self._set_default = torch.set_default_device

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._restore.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def install(self) -> None:
        """Put the map in place."""
        set_default, target = self._set_default, self.target

        def set_default_device(device: Any) -> None:
            set_default(map_device(device, target))

        def synchronize(device: Any = None) -> None:
            return None

        self._replace(torch, "set_default_device", set_default_device)
        self._replace(torch, "Generator", _generator_class(target))
        self._replace(torch.cuda, "synchronize", synchronize)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """No default device."""
        self._set_default(None)

    def remove(self) -> None:
        """Undo ``install``."""
        self.reset()
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        while self._restore:
            owner, name, value = self._restore.pop()
            setattr(owner, name, value)
