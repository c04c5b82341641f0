"""`porter sync` on the little upstream."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mini import OPS, Mini

GATHER = "generated/deepinfer/model_executor/layers/tilelang_ops/neuron/gather.py"
VENDOR = "generated/deepinfer/neuron_ops/vendor"


def test_emits_bodies_stubs_and_the_guide(synced: Mini) -> None:
    text = synced.read(GATHER)
    assert 'def pick_tl(D: int, dtype: str = "bfloat16"):' in text
    assert "_clamped" in text, "what a body uses comes along"
    assert "UNUSED" not in text, "what no body uses stays behind"
    assert 'raise NotImplementedError("drop_tl: not supported on Neuron (basic mode)")' in text
    assert "Do not edit" in text.splitlines()[0] and "overrides/tilelang_ops/gather.py" in text.splitlines()[1]
    guide = synced.read("generated/NEURON_PORT.md")
    assert (
        "| `pick_tl` | `gather` |" in guide
        and "| `drop_tl` | `gather` | drops | nothing is dropped in basic mode |" in guide
    )


def test_a_second_sync_changes_nothing(synced: Mini) -> None:
    before = synced.tree()
    result = synced.run("sync")
    assert (result.code, result.out.splitlines()[0]) == (0, "nothing changed")
    assert synced.tree() == before


def test_two_machines_same_bytes(synced: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Mini(tmp_path / "elsewhere" / "deep")
    other.run("sync")
    other.run("ack", "--all", "--reason", "first review")
    other.run("sync")
    assert other.tree() == synced.tree()


def test_emitted_packages_stand_alone(synced: Mini) -> None:
    code = """
import sys
import deep_gemm, deep_gemm.core, deep_select, deep_ep, flash_mla, tile_kernels.quant, tilelang
assert deep_gemm.LIMIT == 32 and deep_gemm.__version__ == "1.5"
assert deep_gemm.Plan.SLOW.value == 2 and deep_gemm.Plan is deep_gemm.core.Plan
def message(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except NotImplementedError as error:
        return str(error)
    raise SystemExit("did not raise")
assert message(deep_gemm.mul, 1, 2, scale=3.0) == "mul: not implemented on Neuron yet; overrides/vendor/deep_gemm/core.py would supply it"
assert message(deep_select.topk, 1, 2, 3, y=4) == "topk: not supported on Neuron (basic mode)"
assert message(tilelang.dynamic, "n") == "dynamic: not supported on Neuron (basic mode)"
assert "not implemented" in message(deep_gemm.core.Engine, 3, eager=False)
try:
    deep_gemm.mul(a=1)
except TypeError:
    pass
else:
    raise SystemExit("a positional-only parameter was accepted by keyword")
assert not [name for name in sys.modules if name.split(".")[0] in ("porter", "overrides", "libcst", "jinja2")]
"""
    subprocess.run([sys.executable, "-c", code], cwd=synced.project / VENDOR, check=True)


def test_second_names_of_one_object_are_emitted_with_it(synced: Mini) -> None:
    synced.edit("upstream/deep_gemm/deep_gemm/core.py", "def mul(", "start = Engine.start\nhelp = helper\n\n\ndef mul(")
    synced.edit("upstream/deep_gemm/deep_gemm/__init__.py", "Plan, mul", "Plan, mul, start, help as aid")
    synced.edit("porter.toml", '"deep_gemm.mul",', '"deep_gemm.mul", "deep_gemm.core.start",')
    assert synced.run("sync").code == 0
    code = """
import deep_gemm
from deep_gemm import core
assert core.help is core.helper is deep_gemm.aid
assert core.start is deep_gemm.start
"""
    subprocess.run([sys.executable, "-c", code], cwd=synced.project / VENDOR, check=True)


def test_turning_a_feature_on_makes_its_names_pending(synced: Mini) -> None:
    result = synced.run("sync", "--enable", "drops", "--dry-run", "--diff")
    assert result.code == 1
    assert "+    raise NotImplementedError(" in result.out and "drop_tl: not implemented on Neuron yet" in result.out
    assert "not supported on Neuron" in synced.read(GATHER), "a dry run writes nothing"


def test_nothing_of_the_upstream_is_executed(mini: Mini, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for package in ("deep_gemm", "tilelang"):
        mini.edit(f"upstream/{package}/{package}/__init__.py", "from .", f"open({str(harm)!r}, 'w').close()\nfrom .")
    mini.edit(f"upstream/deepinfer/{OPS}/asc/gather.py", "SCALE = 2", f"SCALE = 2\nopen({str(harm)!r}, 'w').close()")
    assert "wrote" in mini.run("sync").out
    assert not harm.exists()


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        (f"deepinfer/{OPS}/asc/broken.py", b"def f(:\n    pass\n", "broken.py:2"),
        ("deep_gemm/deep_gemm/latin.py", b"x = 'caf\xe9'\n", "latin.py"),
        ("tilelang/tilelang/deep.py", b"x = " + b"(" * 4000 + b")" * 4000 + b"\n", "deep.py"),
    ],
)
def test_unreadable_files_are_all_listed_and_nothing_is_written(
    mini: Mini, path: str, data: bytes, message: str
) -> None:
    (mini.upstream / path).write_bytes(data)
    (mini.upstream / "deep_ep/deep_ep/other.py").write_text("if :\n")
    before = mini.tree()
    result = mini.run("sync")
    assert result.code == 3
    assert (
        message in result.err
        and "other.py:1" in result.err
        and "2 upstream files cannot be read; nothing was written" in result.err
    )
    assert mini.tree() == before


def test_hand_edits_are_not_lost(synced: Mini) -> None:
    synced.edit(GATHER, "def pick_tl", "# mine\ndef pick_tl")
    before = synced.tree()
    synced.edit("upstream/deepinfer/" + OPS + "/asc/gather.py", "n * SCALE", "n * SCALE + 1")
    result = synced.run("sync")
    assert (result.code, "edited by hand" in result.err, "--force" in result.err) == (1, True, True)
    assert synced.tree() == before
    assert "wrote" in synced.run("sync", "--force").out
    assert "# mine" not in synced.read(GATHER)


def test_dropped_upstream_modules_leave_the_tree(synced: Mini) -> None:
    (synced.upstream / "tile_kernels/tile_kernels/quant.py").unlink()
    synced.edit(
        "upstream/tile_kernels/tile_kernels/__init__.py", "from . import quant\n", "def cast(x):\n    return x\n"
    )
    assert "1 removed" in synced.run("sync").out
    assert not (synced.project / VENDOR / "tile_kernels/quant.py").exists()


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("[sources]", "[sources", 2, "not valid TOML"),
        ("[features.drops]", "[feature.drops]", 2, "did you mean 'features'"),
        ('"../upstream/deep_ep"', '"../upstream/nowhere"', 3, "nowhere"),
        ('"../upstream/deep_ep"', '"deep_ep>=2"', 2, "pinned"),
    ],
)
def test_configuration_mistakes(mini: Mini, old: str, new: str, code: int, message: str) -> None:
    mini.edit("porter.toml", old, new)
    before = mini.tree()
    result = mini.run("sync")
    assert (result.code, mini.tree() == before) == (code, True), result
    assert message in result.err and "fix:" in result.err


def test_out_of_the_way_folder(synced: Mini, tmp_path: Path) -> None:
    there = tmp_path / "there"
    synced.edit("upstream/deepinfer/" + OPS + "/asc/gather.py", "SCALE = 2", "SCALE = 3")
    before = synced.tree()
    result = synced.run("sync", "--out", str(there))
    assert "wrote" in result.out
    assert (there / "NEURON_PORT.md").is_file() and (there / "porter.lock").is_file()
    assert synced.tree() == before, "the project's own lock and tree stay as they are"
    assert "PT021" in synced.run("check", "--out", str(there)).out


def test_an_override_with_side_effects_is_refused(synced: Mini) -> None:
    synced.edit("overrides/tilelang_ops/gather.py", "UNUSED = 1", "print('loaded')")
    before = synced.tree()
    result = synced.run("sync")
    assert result.code == 2 and "overrides/tilelang_ops/gather.py:7" in result.err and synced.tree() == before


def test_no_permission(synced: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def denied(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied", "x")

    synced.edit("upstream/deepinfer/" + OPS + "/asc/gather.py", "pick_tl", "take_tl")
    before = synced.tree()
    monkeypatch.setattr("tempfile.mkstemp", denied)
    result = synced.run("sync")
    monkeypatch.undo()
    assert result.code == 3 and "Permission denied" in result.err and "fix:" in result.err
    assert {path: data for path, data in synced.tree().items() if ".porter" not in path} == {
        p: d for p, d in before.items() if ".porter" not in p
    }
    assert os.access(synced.project, os.W_OK)


def test_version_and_help() -> None:
    from porter import __version__

    out = subprocess.run(
        [sys.executable, "-m", "porter", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == f"porter {__version__}"
    for command in ("sync", "check", "status", "diff", "sources", "new", "ack"):
        text = subprocess.run(
            [sys.executable, "-m", "porter", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert "Examples:" in text, command
    assert importlib.import_module("porter.cli").app is not None


def test_sources_as_json(synced: Mini) -> None:
    data = json.loads(synced.run("sources", "--json").out)
    assert {row["name"] for row in data["sources"]} >= {"deepinfer", "deep_gemm", "tilelang"}
    assert all(Path(row["path"]).is_dir() and len(row["sha256"]) == 64 for row in data["sources"])
