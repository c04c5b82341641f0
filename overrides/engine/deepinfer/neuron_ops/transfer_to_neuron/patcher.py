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


def class_proxy(real: type, call: Callable[..., Any]) -> type:
    """A stand-in for class ``real`` whose call runs ``call``.

    ``isinstance`` and ``issubclass`` answer for ``real``; it equals and hashes as ``real``, so tables keyed by the
    class keep working; a class derived from it derives from ``real``.
    """

    class Meta(type):
        def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if any(isinstance(base, Meta) for base in bases):
                return type(real)(name, tuple(real if isinstance(base, Meta) else base for base in bases), body)
            return super().__new__(mcs, name, bases, body)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return subclass is cls or issubclass(subclass, real)

        def __eq__(cls, other: Any) -> bool:
            return other is cls or other is real

        def __hash__(cls) -> int:
            return hash(real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    body = {"__module__": real.__module__, "__qualname__": real.__qualname__, "__doc__": real.__doc__}
    return Meta(real.__name__, (), body)


def eager_only(function: Any) -> Any:
    """Mark ``function`` so that torch.compile breaks the graph at it instead of tracing into it.

    The marker is the one torch.compiler.disable sets; setting it directly spares the import of the compiler.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "host side of transfer_to_neuron"
    return function
