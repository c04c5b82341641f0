"""`porter diff`: mutations of the upstream, each reported under its right kind."""

from __future__ import annotations

import json

import pytest
from mini import OPS, Mini

GATHER = f"deepinfer/{OPS}/asc/gather.py"
PICK = "tilelang_ops.asc.gather.pick_tl"


def rows(mini: Mini, *arguments: str) -> dict[str, str]:
    """Kind by symbol, of the emitted backend and the vendor packages (the comparison backend moves alike)."""
    result = mini.run("diff", "--format", "json", *arguments)
    data = json.loads(result.out)
    assert data["version"] == 1
    assert result.code == (1 if data["changes"] else 0)
    for change in data["changes"]:
        assert {"symbol", "source", "kind", "old", "new", "file", "line"} <= set(change)
    return {
        change["symbol"]: change["kind"]
        for change in data["changes"]
        if not change["symbol"].startswith("tilelang_ops.cuda")
    }


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (GATHER, "D: int, dtype", "width: int, dtype", {PICK: "signature"}),
        (
            GATHER,
            'D: int, dtype: str = "bfloat16"',
            'D: int, dtype: str = "bfloat16", pad: int = 0',
            {PICK: "signature"},
        ),
        (GATHER, 'D: int, dtype: str = "bfloat16"', "D: int", {PICK: "signature"}),
        (GATHER, 'D: int, dtype: str = "bfloat16"', 'dtype: str = "bfloat16", D: int = 1', {PICK: "signature"}),
        (GATHER, '"bfloat16"', '"float16"', {PICK: "signature"}),
        (GATHER, "D: int, dtype: str", "D: str, dtype: str", {PICK: "signature"}),
        (GATHER, "T.Tensor((m,), T.int32)", "T.Tensor((m,), T.int64)", {PICK: "contract"}),
        (GATHER, "T.Tensor((m, D), dtype)", "T.Tensor((m, D + 1), dtype)", {PICK: "contract"}),
        (GATHER, "out_idx=None", "out_idx=[2]", {PICK: "contract"}),
        (
            GATHER,
            "T.copy(x[index[row], 0], y[row, 0])",
            "T.copy(x[index[row], 0], y[row, 0])\n            index[row] = 0",
            {PICK: "contract"},
        ),
        (GATHER, "T.copy(x[index[row], 0], y[row, 0])", "T.copy(x[index[row] + 1, 0], y[row, 0])", {PICK: "body"}),
        (GATHER, "SCALE = 2", "SCALE = 3", {PICK: "body"}),
        (GATHER, "n * SCALE", "n // SCALE", {PICK: "body"}),
        (
            "deep_gemm/deep_gemm/core.py",
            "scale: float = 1.0",
            "scale: float = 2.0",
            {"deep_gemm.core.mul": "signature"},
        ),
        (
            "deep_gemm/deep_gemm/core.py",
            "FAST = 1",
            "FAST = 4",
            {"deep_gemm.core.Plan": "body", "deep_gemm.core.Plan.FAST": "body"},
        ),
        ("deep_gemm/deep_gemm/__init__.py", "LIMIT = 4 * 8", "LIMIT = 4 * 9", {"deep_gemm.LIMIT": "body"}),
        ("deep_ep/deep_ep/__init__.py", "def send(x):", "def send(x, y):", {"deep_ep.send": "signature"}),
        ("deep_ep/deep_ep/__init__.py", "return x", "return x\n\n\ndef _private():\n    return 1", {}),
    ],
)
def test_one_mutation(synced: Mini, path: str, old: str, new: str, expected: dict[str, str]) -> None:
    synced.edit(f"upstream/{path}", old, new)
    assert rows(synced) == expected


def test_added_and_removed(synced: Mini) -> None:
    synced.edit(
        "upstream/deep_ep/deep_ep/__init__.py",
        "def send(x):\n    return x\n",
        "def receive(group, *, count):\n    for item in group:\n        yield item, count\n",
    )
    synced.edit("upstream/deep_ep/deep_ep/__init__.py", '["send"]', '["receive"]')
    assert rows(synced) == {"deep_ep.send": "removed", "deep_ep.receive": "added"}


def test_a_renamed_factory_is_proposed(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "pick_tl", "take_tl")
    assert rows(synced) == {PICK: "renamed?"}


def test_a_moved_module_is_proposed(synced: Mini) -> None:
    source = synced.upstream / GATHER
    source.rename(source.with_name("rows.py"))
    assert rows(synced) == {PICK: "renamed?", "tilelang_ops.asc.gather.drop_tl": "renamed?"}


def test_only_the_named_source_is_compared(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "SCALE = 2", "SCALE = 3")
    synced.edit("upstream/deep_ep/deep_ep/__init__.py", "def send(x):", "def send(x, y):")
    assert rows(synced, "--vendor", f"deep_ep={synced.upstream / 'deep_ep'}") == {"deep_ep.send": "signature"}
    assert rows(synced, "--upstream", str(synced.upstream / "deepinfer")) == {PICK: "body"}


@pytest.mark.parametrize("argument", ["deep_ep", "deep_eq=/x", "=x", "deep_ep="])
def test_wrong_vendor_argument(synced: Mini, argument: str) -> None:
    result = synced.run("diff", "--vendor", argument)
    assert result.code == 2 and "fix:" in result.err
