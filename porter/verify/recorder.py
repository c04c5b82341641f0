"""What a test case did: which factories it called and how long their kernels ran, which kernels were missing, which
writes broke a mask, and how far compared tensors lay apart.

Factories are wrapped in upstream's dispatcher module, where the interface functions look them up by name. Kernels run
with torch's function modes off: a kernel has to follow its arguments' device without the harness's device map.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from porter.verify.limits import CaseLimits
from porter.verify.masks import Masks, MaskViolation, WriteGuard, bind, parameter_names

SUFFIX = "_tl"


@dataclass
class FactoryUse:
    """Calls of one factory's kernels within a case; ``seconds`` inside the kernels alone; ``unjudged``: arguments whose
    mask is unknown."""

    calls: int = 0
    seconds: float = 0.0
    unjudged: set[str] = field(default_factory=set)


@dataclass
class CaseLog:
    """One case. ``missing``: factory to what its stub or the dispatcher said. ``violations``: (factory, what).

    ``worst``: largest absolute difference in a comparison that allows one, None when there was none; ``exact`` counts
    comparisons that found equal bits or values; ``unequal`` is the difference in the last exact comparison that failed.
    """

    uses: dict[str, FactoryUse] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    violations: list[tuple[str, str]] = field(default_factory=list)
    worst: float | None = None
    exact: int = 0
    unequal: float | None = None
    uncounted: frozenset[str] = frozenset()

    def difference(self, value: float) -> None:
        """Count a difference that a tolerance allows."""
        self.worst = value if self.worst is None or math.isnan(value) else max(self.worst, value)


def largest_difference(left: Any, right: Any) -> float:
    """Largest absolute difference of two tensors; inf where only one is finite, 0 where both are the same infinity or
    both NaN. NaN when they cannot be compared."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or left.shape != right.shape:
        return math.nan
    if left.numel() == 0:
        return 0.0
    a, b = left.detach().to("cpu").to(torch.float64), right.detach().to("cpu").to(torch.float64)
    gap = (a - b).abs()
    gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, gap.nan_to_num(nan=math.inf, posinf=math.inf))
    return float(gap.max())


type Watch = Callable[[str, Iterable[object]], AbstractContextManager[None]]


class Recorder:
    """Holds the log of the case that runs now, None between cases. ``watch``: put around every kernel call, and nothing
    else, with the factory's name and the call's arguments."""

    def __init__(self, masks: Masks, limits: CaseLimits | None = None, watch: Watch | None = None) -> None:
        self.masks = masks
        self.limits = limits
        self.watch = watch
        self.case: CaseLog | None = None
        self._inside = 0

    def start(self, uncounted: Collection[str] = ()) -> CaseLog:
        """Begin a case. ``uncounted``: comparison functions whose differences are not the kernel's."""
        self.case = CaseLog(uncounted=frozenset(uncounted))
        return self.case

    def stop(self) -> None:
        """End the case."""
        self.case = None

    # factories

    def missing(self, factory: str, message: str) -> None:
        """A kernel was asked for that the backend does not have."""
        if self.case is not None:
            self.case.missing.setdefault(factory, message)

    def wrap_factory(self, name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        """``factory`` with its calls, and its kernels' calls, recorded and checked."""

        @functools.wraps(factory)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return factory(*args, **kwargs)
            try:
                kernel = factory(*args, **kwargs)
            except NotImplementedError as error:
                self.missing(name, str(error))
                raise
            return self.wrap_kernel(name, kernel) if callable(kernel) else kernel

        recorded.pass_configs = dict(getattr(factory, "pass_configs", None) or {})  # type: ignore[attr-defined]
        return recorded

    def wrap_kernel(self, factory: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """``kernel`` with its calls counted, timed and held to the factory's write masks."""
        masks, names = self.masks.get(factory), parameter_names(kernel)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            case = self.case
            if case is None or self._inside:
                return kernel(*args, **kwargs)
            self._inside += 1
            try:
                with torch._C.DisableTorchFunction():
                    return self._run(case, factory, kernel, masks, names, args, kwargs)
            finally:
                self._inside -= 1

        return recorded

    def _run(
        self,
        case: CaseLog,
        factory: str,
        kernel: Callable[..., Any],
        masks: Any,
        names: tuple[str, ...] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        use = case.uses.setdefault(factory, FactoryUse())
        use.calls += 1
        try:
            arguments = bind(masks, names, args, kwargs) if masks else ()
        except MaskViolation as error:
            case.violations.append((factory, str(error)))
            raise
        use.unjudged |= {argument.name for argument in arguments if argument.written is None}
        guard = WriteGuard(arguments)
        with self.limits.headroom(2 * guard.size) if self.limits else nullcontext():
            guard.take()
            start = time.perf_counter()
            watched = self.watch(factory, (*args, *kwargs.values())) if self.watch else nullcontext()
            try:
                with watched:
                    result = kernel(*args, **kwargs)
            except NotImplementedError as error:
                self.missing(factory, str(error))
                raise
            finally:
                use.seconds += time.perf_counter() - start
            found = guard.violations()
        if found:
            case.violations += [(factory, text) for text in found]
            raise MaskViolation(f"{factory}: {'; '.join(found)}")
        return result

    def wrap_dispatcher(self, ops: Any) -> tuple[str, ...]:
        """Wrap every factory that the dispatcher module exports, and its answer for a name it lacks. Gives the names."""
        names = tuple(sorted(name for name, value in vars(ops).items() if name.endswith(SUFFIX) and callable(value)))
        for name in names:
            setattr(ops, name, self.wrap_factory(name, getattr(ops, name)))
        unknown = getattr(ops, "__getattr__", None)

        def lookup(name: str) -> Any:
            if name.endswith(SUFFIX):
                self.missing(name, f"the backend has no {name}")
            if unknown is None:
                raise AttributeError(f"module {ops.__name__!r} has no attribute {name!r}")
            return unknown(name)

        ops.__getattr__ = lookup
        return names

    # comparisons

    def _open(self) -> CaseLog | None:
        return None if self._inside else self.case

    def _difference(self, left: Any, right: Any) -> float:
        size = 48 * left.numel() if isinstance(left, torch.Tensor) else 0
        with self.limits.headroom(size) if self.limits else nullcontext():
            return largest_difference(left, right)

    def wrap_comparisons(self, testing: Any | None) -> Callable[[], None]:
        """Watch torch's and upstream's comparison functions; gives the function that undoes it.

        ``testing``: upstream's helper module with ``assert_close(x, y, ...)``, to be wrapped before tests import it.
        """
        places: list[tuple[Any, str]] = [
            (torch, "equal"),
            (torch.Tensor, "equal"),
            (torch, "allclose"),
            (torch.Tensor, "allclose"),
            (torch.testing, "assert_close"),
        ]
        if testing is not None and hasattr(testing, "assert_close"):
            places.append((testing, "assert_close"))
        originals = [getattr(owner, name) for owner, name in places]
        depth = 0

        def watch(original: Callable[..., Any], name: str) -> Callable[..., Any]:
            exact = name == "equal"

            @functools.wraps(original)
            def compared(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal depth
                case = self._open()
                if case is None or depth or name in case.uncounted:
                    return original(left, right, *args, **kwargs)
                depth += 1
                try:
                    if not exact:
                        case.difference(self._difference(left, right))
                    result = original(left, right, *args, **kwargs)
                    if exact and result:
                        case.exact += 1
                    elif exact:
                        case.unequal = self._difference(left, right)
                    return result
                finally:
                    depth -= 1

            return compared

        for (owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, watch(original, name))

        def restore() -> None:
            for (owner, name), original in zip(places, originals, strict=True):
                setattr(owner, name, original)

        return restore
