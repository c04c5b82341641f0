"""What a test process is told: written by the caller as JSON, read by the plugin inside pytest."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from porter.verify.errors import HarnessError

SESSION_VARIABLE = "PORTER_VERIFY_SESSION"


@dataclass(frozen=True)
class Session:
    """One run's settings, plain data.

    ``root``: the workspace. ``results``: folder for what the processes record. ``platform``: as in ``Workspace``.
    ``flavour``: ``npu`` or ``gpu``, what the platform object says it is like. ``device``: the torch device that stands
    for upstream's ``cuda``. ``excluded``: factory to the reason why the backend leaves it out. ``masks``: see
    ``masks.py``. ``files``: stems of the interface modules to run, None for all. ``select``: run only tests that call
    one of these factories, None for all. ``done``: node ids that an earlier process of the same run finished.
    ``memory`` (bytes above what the process holds already) and ``seconds``: caps for a case. ``full``: upstream's own
    sizes, where a cap is listed and not failed. ``paths``: folders put at the front of ``sys.path`` after the
    workspace, for the real tile-kernels and tilelang. ``preload``: modules imported before anything else, for a device
    that has to be registered with torch. ``simulated``: that device is porter's simulation, whose findings and costs are
    recorded, with the list of ``operators`` and the ``rates`` of these files in place of its own. ``stretch``: factor on
    the caps that the catalogue gives a test. ``origins``: path in ``root`` to the file it was emitted from, relative to
    ``project``.
    """

    root: str
    results: str
    platform: str = "patched"
    flavour: str = "npu"
    device: str = "cpu"
    excluded: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] | None = None
    select: tuple[str, ...] | None = None
    done: tuple[str, ...] = ()
    memory: int | None = None
    seconds: float | None = None
    full: bool = False
    paths: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    simulated: bool = False
    operators: str | None = None
    rates: str | None = None
    stretch: float = 1.0
    origins: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    catalogue: str | None = None

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")


def read_session(path: Path) -> Session:
    """Read what ``Session.write`` wrote.

    Raises:
        HarnessError: no such file, or not a session.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        for name in ("files", "select"):
            data[name] = None if data[name] is None else tuple(data[name])
        for name in ("done", "paths", "preload"):
            data[name] = tuple(data[name])
        return Session(**data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HarnessError(f"not a verification session: {error!r}", path=str(path)) from error


def session_from_environment() -> Session | None:
    """The session that the caller named in the environment, None outside a verification."""
    path = os.environ.get(SESSION_VARIABLE)
    return None if not path else read_session(Path(path))
