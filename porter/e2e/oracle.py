"""The independent implementation in a process of its own interpreter; porter imports nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from porter.e2e.errors import OracleError

if TYPE_CHECKING:
    import torch

CHILD = Path(__file__).with_name("oracle_child.py")
_LOG_LINES = 40
_PATIENCE = 60.0
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Form:
    """Number format of a model: ``dtype`` of weights and arithmetic, and whether activations are rounded to FP8."""

    dtype: str
    quantised: bool


PLAIN, EXACT, RELEASED = Form("float32", False), Form("float32", True), Form("bfloat16", True)
"""The architecture alone; the released format's roundings in float32 arithmetic; and as the engine has it."""


class Oracle:
    """The running implementation; a context manager. ``faults``: ways to break it on purpose.

    Parameters:
        python: interpreter of the oracle's environment (porter.e2e.environment).
        model: checkpoint folder.

    Raises OracleError, with the end of its log, where it does not start or dies.
    """

    def __init__(self, python: Path, model: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="porter-oracle-")
        self._log = tempfile.NamedTemporaryFile(prefix="porter-oracle-", suffix=".log")  # noqa: SIM115
        commands_read, commands_write = os.pipe()
        answers_read, answers_write = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        self._process = subprocess.Popen(
            [str(python), "-I", str(CHILD), str(commands_read), str(answers_write)],
            cwd=self._folder.name,
            # Compiled functions would take minutes to start, for the same values.
            env={**environment, "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(commands_read, answers_write),
        )
        os.close(commands_read)
        os.close(answers_write)
        self._commands = os.fdopen(commands_write, "w", buffering=1)
        self._answers = os.fdopen(answers_read)
        try:
            answer = self._ask({"model": str(model.absolute())})
        except BaseException:
            self.close()
            raise
        self.faults: Sequence[str] = answer["faults"]

    def logits(
        self, form: Form, sequences: Sequence[Sequence[int]], first: Sequence[int], fault: str | None = None
    ) -> list[torch.Tensor]:
        """Logits f32[T - first, V] of each sequence from its position ``first`` on."""
        tokens = [[*map(int, sequence)] for sequence in sequences]
        found = self._compute(form, {"kind": "logits", "sequences": tokens, "first": [*first], "fault": fault})
        return [found[str(number)] for number in range(len(sequences))]

    def modules(
        self, form: Form, tokens: Sequence[int], rows: Path, fault: str | None = None
    ) -> dict[str, torch.Tensor]:
        """What each module gives for the engine's input to it; keys as in porter.e2e.recording, f32."""
        command = {"kind": "modules", "tokens": [*map(int, tokens)], "rows": str(rows), "fault": fault}
        return self._compute(form, command)

    def _compute(self, form: Form, command: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        out = Path(self._folder.name) / "out.safetensors"
        self._ask({**command, **asdict(form), "out": str(out)})
        return load_file(out)

    def _ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
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
        tail = "\n".join(Path(self._log.name).read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise OracleError(f"the independent implementation stopped:\n{answer.get('error') or tail}", fix="read the lines above")

    def close(self) -> None:
        """Let the process end, and wait for it. Safe to call twice."""
        for pipe in (self._commands, self._answers):
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
