"""The independent implementation in a process of its own interpreter; porter imports nothing of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from porter.demo.dialogue import Dialogue
from porter.e2e.errors import OracleError

if TYPE_CHECKING:
    import torch

CHILD = Path(__file__).with_name("oracle_child.py")
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
        environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        self._dialogue = Dialogue(
            [str(python), "-I", str(CHILD)],
            folder=Path(self._folder.name),
            # Compiled functions would take minutes to start, for the same values.
            environment={**environment, "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""},
            name="porter-oracle",
            failure=lambda words: OracleError(
                f"the independent implementation stopped:\n{words}", fix="read the lines above"
            ),
        )
        try:
            answer = self._dialogue.ask({"model": str(model.absolute())})
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
        self._dialogue.ask({**command, **asdict(form), "out": str(out)})
        return load_file(out)

    def close(self) -> None:
        """Let the process end, and wait for it. Safe to call twice."""
        self._dialogue.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
