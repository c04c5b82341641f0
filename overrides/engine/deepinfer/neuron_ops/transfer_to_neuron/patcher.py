"""Replaces attributes and remembers what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patcher:
    """A stack of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._undo)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name``; an attribute that ``owner`` only inherited is deleted again on restore."""
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name, _ABSENT) is not value:
                return  # somebody patched over it since: theirs stays
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(undo)

    def on_restore(self, undo: Callable[[], None]) -> None:
        """Run ``undo`` on restore."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Undo everything, last first."""
        while self._undo:
            self._undo.pop()()


class _Proxy(type):
    """Metaclass of the stand-ins that ``class_proxy`` makes. A stand-in holds its class as ``_proxied``."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if any(isinstance(base, _Proxy) for base in bases):  # a class derived from a stand-in
            real_bases = tuple(_proxied(base) for base in bases)
            return type(real_bases[0])(name, real_bases, body)
        return super().__new__(mcs, name, bases, body)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return vars(cls)["_make"](*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _proxied(cls))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(_proxied(subclass), _proxied(cls))

    def __eq__(cls, other: object) -> bool:
        return _proxied(other) is _proxied(cls)

    def __hash__(cls) -> int:
        return hash(_proxied(cls))

    def __getattr__(cls, name: str) -> Any:
        return getattr(_proxied(cls), name)


def _proxied(value: Any) -> Any:
    """The class behind a stand-in, anything else as it is."""
    return vars(value).get("_proxied", value) if isinstance(value, type) else value


def class_proxy(real: type, make: Callable[..., Any]) -> Any:
    """A stand-in for class ``real`` whose call runs ``make``.

    ``isinstance`` and ``issubclass`` answer for ``real``; it equals and hashes as ``real``, and so does every other
    stand-in for it, so that tables keyed by the class keep working (torch.compile has several); a class derived from
    it derives from ``real``.
    """
    body = {"__module__": real.__module__, "__qualname__": real.__qualname__, "__doc__": real.__doc__}
    return _Proxy(real.__name__, (), {**body, "_proxied": real, "_make": make})


def eager_only(function: Any) -> Any:
    """Mark ``function`` so that torch.compile breaks the graph at it instead of tracing into it.

    The marker is the one torch.compiler.disable sets; setting it directly spares the import of the compiler.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "host side of transfer_to_neuron"
    return function
