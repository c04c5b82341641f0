"""Runs inside the engine's process, in place of the demo's child: it can also record a run. Imports nothing of porter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _load(path: Path) -> Any:
    """A file by its path: on the search path, its folder would hide other modules."""
    spec = importlib.util.spec_from_file_location(f"porter_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


child, recording = _load(HERE.parent / "demo" / "child.py"), _load(HERE / "recording.py")


def serve(llm: Any, command: dict[str, Any]) -> dict[str, Any]:
    """``generate``, and where the command has ``record``, its prompt's rows in that safetensors file."""
    if "record" not in command:
        answer: dict[str, Any] = child.generate(llm, command)
        return answer
    from safetensors.torch import save_file

    runner = llm.llm_engine.driver_worker.model_runner
    recorder = recording.Recorder(_language_model(runner.model))
    with recorder.recording():
        answer = child.generate(llm, command)
    save_file(recorder.rows(), command["record"])
    return answer


def _language_model(model: Any) -> Any:
    for name in ("language_model", "language", "model"):
        inner = getattr(model, name, None)
        if inner is not None:
            return inner if hasattr(inner, "output_norm") else _language_model(inner)
    raise AttributeError(f"{type(model).__name__} holds no language model")


if __name__ == "__main__":
    child.main(int(sys.argv[1]), int(sys.argv[2]), serve)
