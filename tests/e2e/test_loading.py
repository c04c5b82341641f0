"""The engine's own loader takes every tensor of the checkpoint and misses none."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from porter.demo import checkpoint, layout
from porter.demo.checkpoint import Variant
from porter.demo.engine import Engine
from porter.demo.errors import EngineError
from porter.demo.layout import Kind
from porter.demo.workspace import Workspace
from tests.e2e.conftest import ARGUMENTS

pytestmark = pytest.mark.engine


def test_every_tensor_is_consumed_and_every_parameter_covered(engine: Engine, model: Path) -> None:
    index = json.loads((model / checkpoint.INDEX_FILE).read_text())["weight_map"]
    log = engine.log()
    seen = re.search(r"HF weight coverage: (\d+) tensors / (\d+) shards; plain params (\d+), expert params (\d+)", log)
    loaded = re.search(r"HF weights loaded: (\{.*\})", log)
    assert seen and loaded, log[-2000:]
    stats = ast.literal_eval(loaded.group(1))
    items = [*layout.items(), *layout.vision_items()]
    experts = sum(item.kind is Kind.EXPERT_FP4 for item in items)
    tables = sum(item.kind is Kind.TABLE_FP8 for item in items)
    merged = sum("shared_experts.w3" in item.name for item in items)  # w1 and w3 are one parameter
    plain = len(items) - experts - tables - merged
    assert [int(count) for count in seen.groups()] == [len(index), 2, plain, 2 * layout.LAYERS]
    assert stats["params"] == plain and stats["expert_skipped"] == 0
    assert stats["fp8"] == sum(item.kind is Kind.BLOCK_FP8 for item in items) - merged
    assert (stats["expert_params"], stats["experts"]) == (2 * layout.LAYERS, 2 * layout.LAYERS * layout.EXPERTS)
    assert (stats["engram_tables"], stats["engram_rows"]) == (tables, sum(layout.engram_primes()))
    scaled = sum(item.kind in (Kind.BLOCK_FP8, Kind.EXPERT_FP4, Kind.TABLE_FP8) for item in items)
    assert len(index) == len(items) + scaled


@pytest.mark.parametrize(
    "missing", ["layers.3.attn.attn_sink", "layers.1.engram.wkv.weight", "layers.5.ffn.experts.7.w2.scale"]
)
def test_a_missing_tensor_is_named(workspace: Workspace, tmp_path: Path, missing: str) -> None:
    """So that the test above can fail: the loader does notice."""
    folder = checkpoint.write(tmp_path / "model")
    path = folder / checkpoint.INDEX_FILE
    index = json.loads(path.read_text())
    del index["weight_map"][missing]
    path.write_text(json.dumps(index))
    with pytest.raises(EngineError, match=r"(experts|sink|engram)"):
        Engine(workspace, folder, ARGUMENTS).close()


@pytest.mark.parametrize("variant", [Variant.BF16, Variant.FP32])
def test_the_engine_reads_the_released_format_alone(workspace: Workspace, tmp_path: Path, variant: Variant) -> None:
    """Upstream's hugging_face/config.py wants FP8 weights and FP4 experts; the plain variants are for other models."""
    with pytest.raises(EngineError, match="quantization_config"):
        Engine(workspace, checkpoint.write(tmp_path / variant, variant=variant), ARGUMENTS).close()
