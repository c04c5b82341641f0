"""What dispatch and combine return beside their results, after ``deep_ep.utils.event``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._C import EventHandle


class EventOverlap:
    """An event that may carry the rest of a call: a hook, run once by the first wait, whose result the wait returns.

    ``event``: what to wait for, None for a call that has already waited. ``extra_tensors``: kept alive with it.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[..., Any] | None = None
        self._release = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Wait, run the hook if there is one, and return its result. ``release_handle`` drops the event and what it keeps.

        Raises:
            AssertionError: there is no event.
        """
        assert self.event is not None, "there is no event to wait for"
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = None if hook is None else hook()
        if release_handle:
            self.event = None
        return result

    def wait(self) -> Any:
        """``current_stream_wait`` by its shorter name."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[..., Any]) -> None:
        """Run ``hook_after_wait`` at the next wait.

        Raises:
            AssertionError: a hook is waiting already.
        """
        assert self.hook_after_wait is None, "a hook is waiting already"
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """The object itself, for ``with event(release_handle=True):``."""
        self._release = release_handle
        return self

    def __enter__(self) -> Any:
        """Start a block that runs before the wait."""
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        """Wait, if there is an event."""
        release, self._release = self._release, False
        if self.event is not None:
            self.current_stream_wait(release_handle=release)
