"""DeepInfer's engine in a process of its own that can record what its modules take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from porter.demo.engine import Completion, Engine


class RecordedEngine(Engine):
    """An engine as the demo's; see porter.e2e.recording for what it records."""

    child: ClassVar[Path] = Path(__file__).with_name("recorded_child.py")

    def record(self, prompt: Sequence[int], sampling: Mapping[str, Any], file: Path) -> Completion:
        """Generate for one prompt, and write its rows to ``file`` (safetensors)."""
        command = {"prompts": [[*map(int, prompt)]], "sampling": [dict(sampling)], "record": str(file)}
        return Completion(**self._ask(command)["completions"][0])
