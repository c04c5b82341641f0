"""A program in the engine's environment that gets one request and gives one answer, and several of them side by side."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from porter.demo.errors import EngineError
from porter.demo.workspace import Workspace

_LOG_LINES = 40
# The engine's default lets a prefill start at every 70th step only, so a lone request waits for up to 70 empty steps.
_PROMPT = {"DEEPINFER_PREFILL_ATTEMPT_INTERVAL": "1"}


def run(
    workspace: Workspace,
    program: Path,
    request: Mapping[str, Any],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """The answer of ``program``, called with the path of a file that holds ``request`` and the path to answer to.

    ``timeout``: seconds. Raises EngineError, with the end of what it printed, where it fails or takes longer.
    """
    (answer,) = run_ranks(workspace, program, [request], timeout=timeout, environment=environment)
    return answer


def run_ranks(
    workspace: Workspace,
    program: Path,
    requests: Sequence[Mapping[str, Any]],
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
) -> Sequence[Mapping[str, Any]]:
    """One process a request, all at once, with one free port for their rendezvous; the answers in order.

    A rank that fails ends the others, and its output is the error's.
    """
    shared = {**_PROMPT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="porter-oneshot-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, request in enumerate(requests):
                (folder / f"request-{rank}.json").write_text(json.dumps(request))
                with (folder / f"log-{rank}").open("wb") as log:
                    processes.append(
                        subprocess.Popen(
                            [
                                sys.executable, "-P", str(program), str(folder / f"request-{rank}.json"),
                                str(folder / f"answer-{rank}.json"),
                            ],
                            cwd=folder,
                            env=workspace.environment(**shared),
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )  # fmt: skip
            _wait(processes, folder, timeout)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return [json.loads((folder / f"answer-{rank}.json").read_text()) for rank in range(len(requests))]


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout: float) -> None:
    """Return when all have ended well; raise EngineError as soon as one has not."""
    deadline = time.monotonic() + timeout
    codes = [process.poll() for process in processes]
    while None in codes and not any(codes) and time.monotonic() < deadline:
        time.sleep(0.1)
        codes = [process.poll() for process in processes]
    failed = any(codes)
    for rank, code in enumerate(codes):
        if code or (code is None and not failed):
            tail = "\n".join((folder / f"log-{rank}").read_text(errors="replace").splitlines()[-_LOG_LINES:])
            how = f"ended with {code}" if code else f"took over {timeout:.0f} s"
            raise EngineError(f"rank {rank} of {len(processes)} {how}:\n{tail}", fix="read the lines above")


def _port() -> int:
    """A free port, such that the 64 below it, of which the engine takes one, are most likely free as well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
