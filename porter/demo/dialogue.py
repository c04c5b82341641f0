"""A program in a process of its own that is told what to do, and answers, a JSON object a line."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from porter.errors import PorterError

_LOG_LINES = 40
_PATIENCE = 60.0


class Dialogue:
    """The running program. It gets two file descriptors as its last arguments: one to read from, one to answer to.

    Parameters:
        command: the program and the arguments before these.
        folder, environment: where and with which variables it runs.
        name: of its log file.
        failure: the error for a program that stopped, of what it said last.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        name: str,
        failure: Callable[[str], PorterError],
    ) -> None:
        self._failure = failure
        self._log = tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log")  # noqa: SIM115
        commands_read, commands_write = os.pipe()
        answers_read, answers_write = os.pipe()
        self._process = subprocess.Popen(
            [*command, str(commands_read), str(answers_write)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(commands_read, answers_write),
        )
        os.close(commands_read)
        os.close(answers_write)
        self._commands = os.fdopen(commands_write, "w", buffering=1)
        self._answers = os.fdopen(answers_read)

    def log(self) -> str:
        """What the program printed so far."""
        return Path(self._log.name).read_text(errors="replace")

    def ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to ``command``. Raises what ``failure`` makes where there is none, or one that holds ``error``."""
        try:
            self._commands.write(json.dumps(command) + "\n")
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        answer: Mapping[str, Any] = json.loads(line) if line else {}
        if line and "error" not in answer:
            return answer
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        raise self._failure(answer.get("error") or "\n".join(self.log().splitlines()[-_LOG_LINES:]))

    def close(self) -> None:
        """Let the program end, and wait for it. Safe to call twice."""
        for pipe in (self._commands, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
