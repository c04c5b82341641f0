"""The offline engine starts with environment variables alone, as far as the kernels there allow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.platform.conftest import Run

pytestmark = pytest.mark.engine

SCRIPT = """
import sys
from pathlib import Path

if __name__ == "__main__":
    if "stand_in_device" in " ".join(sys.modules):
        sys.modules["tests.platform.support.stand_in_device"].register_backend()
    from tests.platform.support import tiny_model
    model = tiny_model.write(Path({folder!r}))
    from deepinfer.entrypoints.llm import LLM
    llm = LLM(str(model), load_format="dummy", max_model_len=640, max_num_seqs=4, max_num_batched_tokens=640)
    llm.llm_engine.close()
    print("CONSTRUCTED")
"""

MISSING_KERNEL = re.compile(
    r"^(\[rank0\]: )?(NotImplementedError: .*not implemented on Neuron yet; overrides/\S+ would supply it"
    r"|deepinfer\.\S*KernelUnavailableError: .*)$",
    re.MULTILINE,
)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_an_engine_constructs_or_names_the_missing_kernel(device: str, engine: Path, run: Run, tmp_path: Path) -> None:
    # The stand-in always tells the same figures: 2 GiB at the peak, 2 GiB outside of torch.
    memory = {"cpu": "1", "neuron": "5"}[device]
    done = run(SCRIPT.format(folder=str(tmp_path / "tiny")), device=device, env={"DEEPINFER_NEURON_MEMORY_GB": memory})
    text = done.stdout + done.stderr
    assert "Initializing an LLM engine" in text, text[-4000:]
    if done.returncode == 0:
        assert "CONSTRUCTED" in done.stdout
        return
    assert MISSING_KERNEL.search(text), text[-4000:]
    assert "NUMA" not in text and "DEEPINFER" not in MISSING_KERNEL.search(text).group(0)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (
            "context_parallel_size=2",
            {},
            "context_parallel_size=2: context parallelism: not supported on Neuron (basic mode)",
        ),
        (
            "",
            {"DEEPINFER_USE_NEXTN_DECODE": "5"},
            "DEEPINFER_USE_NEXTN_DECODE=5: speculative decoding (MTP, DSpark): not supported",
        ),
        (
            "",
            {"DEEPINFER_ENFORCE_EAGER": "0"},
            "DEEPINFER_ENFORCE_EAGER=0: graph capture: not supported on Neuron (basic mode)",
        ),
    ],
)
def test_an_excluded_feature_stops_the_engine_before_a_model_is_read(
    arguments: str, environment: dict[str, str], message: str, engine: Path, run: Run
) -> None:
    done = run(f"from deepinfer.entrypoints.llm import LLM; LLM('/nonexistent', {arguments})", env=environment)
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[-1], done.stderr[-2000:]
