"""`porter check`, `status`, `new`, `ack` on the little upstream: each state under its own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini import OPS, Mini

from porter.findings import Finding

GATHER = f"deepinfer/{OPS}/asc/gather.py"
EMITTED = "deepinfer/model_executor/layers/tilelang_ops/neuron/gather.py"
OVERRIDE = "overrides/tilelang_ops/gather.py"


def codes(mini: Mini, *arguments: str) -> dict[str, list[dict[str, object]]]:
    """Findings of a check by code."""
    result = mini.run("check", "--format", "json", *arguments)
    rows = json.loads(result.out)["findings"]
    assert result.code == (1 if rows else 0), result
    found: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        assert row["fix"], row
        found.setdefault(row["code"], []).append(row)
    return found


def test_clean(synced: Mini) -> None:
    assert synced.run("check").out == "clean\n"
    assert codes(synced) == {}


def test_needs_no_upstream(synced: Mini) -> None:
    synced.upstream.rename(synced.folder / "gone")
    assert synced.run("check").code == 0


@pytest.mark.parametrize("clear", [True, False])
def test_edited_missing_and_stale_outputs(synced: Mini, clear: bool) -> None:
    (synced.project / "generated/NEURON_PORT.md").unlink()
    synced.edit(f"generated/{EMITTED}", "def pick_tl", "def  pick_tl")
    found = codes(synced)
    assert set(found) == {"PT002", "PT003"}
    assert found["PT003"][0]["path"] == f"generated/{EMITTED}"
    if clear:
        synced.edit(f"generated/{EMITTED}", "def  pick_tl", "def pick_tl")
        assert synced.run("sync").code == 0 and codes(synced) == {}


def test_an_edited_override_makes_outputs_outdated(synced: Mini) -> None:
    synced.edit(OVERRIDE, "rows - 1", "rows - 2")
    (row,) = codes(synced)["PT004"]
    assert row["path"] == f"generated/{EMITTED}"
    assert synced.run("sync").code == 0
    assert codes(synced) == {}


def test_a_comment_in_porter_toml_changes_no_output(synced: Mini) -> None:
    synced.edit("porter.toml", "[sources]", "# a word\n[sources]")
    assert codes(synced) == {}


def test_a_deleted_override_leaves_an_undecided_name_and_an_idle_pin(synced: Mini) -> None:
    (synced.project / OVERRIDE).unlink()
    found = codes(synced)
    assert {"PT004", "PT010", "PT024"} <= set(found)
    assert found["PT010"][0]["symbol"] == "tilelang_ops.asc.gather.pick_tl"


def test_stale_until_acknowledged(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "n * SCALE", "n * SCALE + 1")
    assert synced.run("sync").code == 1
    (row,) = codes(synced)["PT021"]
    assert row["symbol"] == "tilelang_ops.asc.gather.pick_tl" and "porter ack" in str(row["fix"])
    assert synced.run("ack", "pick_tl").code == 2, "a reason is needed"
    assert synced.run("ack", "pick_tl", "--reason", "only the grid").code == 0
    assert synced.run("sync").code == 0
    assert codes(synced) == {}
    assert "only the grid" in synced.read("overrides/pins.toml")


def test_a_stale_override_shows_what_changed_upstream(
    synced: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced.edit(f"upstream/{GATHER}", "n * SCALE", "n * SCALE + 1")
    synced.run("sync")
    (row,) = codes(synced)["PT021"]
    assert "-    return n * SCALE\n+    return n * SCALE + 1" in str(row["detail"])
    assert "+    return n * SCALE + 1" in synced.run("check").out
    shown = synced.run("ack", "pick_tl", "--show")
    assert shown.code == 0 and "+    return n * SCALE + 1" in shown.out
    assert codes(synced)["PT021"], "showing pins nothing"
    monkeypatch.setenv("PORTER_CACHE_DIR", str(tmp_path / "another machine"))
    (row,) = codes(synced)["PT021"]
    assert "porter ack tilelang_ops.asc.gather.pick_tl --show" in str(row["detail"])
    lost = synced.run("ack", "pick_tl", "--show")
    assert lost.code == 3 and "was pinned to" in lost.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y: T.Tensor((m, D), dtype)", "y: T.Tensor((m, D, 1), dtype)"),
        ("index: T.Tensor((m,), T.int32)", "index: T.Tensor((n,), T.int32)"),
        ('dtype: str = "bfloat16"', 'dtype: object = "bfloat16"'),
    ],
)
def test_a_contract_that_moved_makes_it_stale(synced: Mini, old: str, new: str) -> None:
    synced.edit(f"upstream/{GATHER}", old, new)
    synced.run("sync")
    (row,) = codes(synced)["PT021"]
    assert "contract" in str(row["message"]) and "body" not in str(row["message"])
    assert row["detail"]


def test_compiled_names_want_a_declaration(synced: Mini) -> None:
    synced.edit("upstream/deep_gemm/deep_gemm/__init__.py", "from .core", "from ._C import fast\nfrom .core")
    synced.edit("porter.toml", '"deep_gemm.mul",', '"deep_gemm.mul", "deep_gemm.fast",')
    assert synced.run("sync").code == 1
    (row,) = codes(synced)["PT013"]
    assert row["symbol"] == "deep_gemm.fast" and "overrides/vendor/deep_gemm/_C.pyi" in str(row["fix"])
    declaration = synced.write(
        "overrides/vendor/deep_gemm/_C.pyi", "def fast(x, /, *, scale: float = 2.0) -> None: ...\n"
    )
    assert "PT032" in codes(synced)
    assert synced.run("sync").code == 0
    assert codes(synced) == {}
    assert "def fast(x, /, *, scale: float = 2.0) -> None:" in synced.read(
        "generated/deepinfer/neuron_ops/vendor/deep_gemm/_C.py"
    )
    declaration.write_text("def fast(x) -> None: ...\n")
    assert "PT032" in codes(synced)


def test_members_of_compiled_classes_can_be_called(synced: Mini) -> None:
    synced.edit("upstream/deep_gemm/deep_gemm/__init__.py", "from .core", "from ._C import Event\nfrom .core")
    synced.edit("porter.toml", '"deep_gemm.mul",', '"deep_gemm.mul", "deep_gemm.Event",')
    stub = "class Event:\n    @property\n    def done(self) -> bool: ...\n    def wait(self, seconds: float = 1.0) -> None: ...\n"
    synced.write("overrides/vendor/deep_gemm/_C.pyi", stub)
    assert synced.run("sync").code == 0
    text = synced.read("generated/deepinfer/neuron_ops/vendor/deep_gemm/_C.py")
    assert "def wait(self, seconds: float = 1.0) -> None:" in text and "def done(self) -> bool:" in text
    synced.write(
        "overrides/vendor/deep_gemm/_C.py",
        '''
        """Upstream's ``deep_gemm._C``."""


        class Event:
            """Done at once."""

            @property
            def done(self) -> bool:
                """True."""
                return True

            def wait(self, seconds: float = 1.0) -> None:
                """Nothing to wait for."""
        ''',
    )
    synced.edit("porter.toml", ' "deep_gemm.Event",', "")
    synced.run("sync")
    assert set(codes(synced)) == {"PT023"}


def test_a_constant_behind_the_body_makes_it_stale(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "SCALE = 2", "SCALE = 3")
    synced.run("sync")
    assert "PT021" in codes(synced)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2", "SCALE = 2  # twice"),
        ("    return n * SCALE", "    # a word\n    return (n * SCALE)"),
        ('"""Picks rows.', '"""Takes rows.'),
        ("import tilelang\n", "\n\nimport tilelang\n"),
    ],
)
def test_formatting_and_comments_report_nothing(synced: Mini, old: str, new: str) -> None:
    synced.edit(f"upstream/{GATHER}", old, new)
    result = synced.run("diff")
    assert (result.code, result.out) == (0, "no change\n")
    synced.run("sync")
    assert codes(synced) == {}


def test_mismatched_signature(synced: Mini) -> None:
    synced.edit(
        f"upstream/{GATHER}",
        'def pick_tl(D: int, dtype: str = "bfloat16")',
        "def pick_tl(D: int, *, dtype: str = 'int8')",
    )
    assert synced.run("sync").code == 1
    rows = codes(synced)["PT022"]
    assert any("dtype" in str(row["message"]) for row in rows)
    assert synced.run("ack", "pick_tl", "--reason", "no").code == 2, "a mismatch is not for a waiver"


def test_mismatched_kernel_arguments(synced: Mini) -> None:
    synced.edit(
        f"upstream/{GATHER}",
        "_pick(x: T.Tensor((n, D), dtype), index: T.Tensor((m,), T.int32),",
        "_pick(index: T.Tensor((m,), T.int32), x: T.Tensor((n, D), dtype),",
    )
    synced.run("sync")
    assert any("must take (index, x, y), takes (x, index, y)" in str(row["message"]) for row in codes(synced)["PT022"])


def test_orphan_override(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "pick_tl", "take_tl")
    synced.run("sync")
    found = codes(synced)
    assert {"PT020", "PT010"} <= set(found)
    assert any(row["symbol"] == "tilelang_ops.asc.gather.pick_tl" for row in found["PT020"])


def test_a_misspelt_override_is_an_orphan(synced: Mini) -> None:
    synced.edit(OVERRIDE, "def pick_tl", "def pik_tl")
    found = codes(synced)
    assert any("pik_tl" in str(row["message"]) for row in found["PT020"])


def test_an_override_file_without_an_upstream_module(synced: Mini) -> None:
    synced.write("overrides/tilelang_ops/nowhere.py", '"""Bodies of tilelang_ops.asc.nowhere."""\n')
    assert any("tilelang_ops.asc.nowhere" in str(row["message"]) for row in codes(synced)["PT020"])


def test_a_new_factory_is_undecided(synced: Mini) -> None:
    text = (synced.upstream / GATHER).read_text()
    (synced.upstream / GATHER).write_text(
        text + text[text.index("@tilelang.jit\ndef drop_tl") :].replace("drop_tl", "fresh_tl")
    )
    assert synced.run("sync").code == 1
    (row,) = codes(synced)["PT010"]
    assert row["symbol"] == "tilelang_ops.asc.gather.fresh_tl"
    assert "not implemented on Neuron yet" in synced.read(f"generated/{EMITTED}")


@pytest.mark.parametrize("pattern", ["tilelang_ops.asc.gather.gone_tl", "deep_eq.*"])
def test_patterns_that_match_nothing(synced: Mini, pattern: str) -> None:
    synced.edit("porter.toml", '"flash_mla.*"', f'"flash_mla.*", "{pattern}"')
    (row,) = codes(synced)["PT011"]
    assert pattern in str(row["message"]) and row["line"]


def test_pending_name_that_is_implemented(synced: Mini) -> None:
    synced.edit("porter.toml", '"deep_gemm.mul"', '"deep_gemm.mul", "tilelang_ops.asc.gather.pick_tl"')
    assert "PT012" in codes(synced)


def test_another_pin_in_porter_toml(synced: Mini) -> None:
    synced.edit("porter.toml", '"../upstream/deep_ep"', '"deepinfer-ep==9.9"')
    assert "PT031" in codes(synced)


@pytest.mark.parametrize("field", ["porter", "black"])
def test_a_lock_of_other_tools(synced: Mini, field: str) -> None:
    lock = json.loads(synced.read("porter.lock"))
    synced.edit("porter.lock", f'"{field}": "{lock[field]}"', f'"{field}": "0.0.1"')
    assert "PT030" in codes(synced)


@pytest.mark.parametrize(
    ("text", "message"), [("", "JSON"), ("{}", "format"), ('{"version": 1}', "not of the form"), (None, "no lock yet")]
)
def test_a_broken_lock(synced: Mini, text: str | None, message: str) -> None:
    if text is None:
        (synced.project / "porter.lock").unlink()
    else:
        synced.write("porter.lock", text)
    result = synced.run("check")
    assert result.code == 2 and message in result.err and "porter sync" in result.err


def test_kernel_rules_are_applied(synced: Mini) -> None:
    synced.edit(OVERRIDE, "y.copy_(x.index_select(0, _clamped(index, x.shape[0])))", "y.copy_(x[int(index[0].item())])")
    assert any(code.startswith("PT1") for code in codes(synced))


def test_excluded_overrides_are_held_to_their_promise(synced: Mini) -> None:
    synced.edit(
        OVERRIDE,
        "def pick_tl",
        'def drop_tl(width: int):\n    """Zeroes."""\n\n    def kernel(x: torch.Tensor) -> None:\n        x.zero_()\n\n    return kernel\n\n\ndef pick_tl',
    )
    assert {row["symbol"] for row in codes(synced)["PT023"]} == {"tilelang_ops.asc.gather.drop_tl"}
    synced.run("ack", "--all", "--reason", "written")
    synced.run("sync")
    assert codes(synced) == {}
    assert "not supported on Neuron" in synced.read(f"generated/{EMITTED}")
    assert synced.run("sync", "--enable", "drops").code == 0
    assert "x.zero_()" in synced.read(f"generated/{EMITTED}")


def test_status(synced: Mini) -> None:
    data = json.loads(synced.run("status", "--json").out)
    assert data["factories"] == {"total": 2, "implemented": 1, "excluded": 1, "pending": 0, "stale": 0}
    assert set(data["vendor"]) == {"deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels", "tilelang"}
    assert data["vendor"]["deep_select"]["excluded"] == data["vendor"]["deep_select"]["total"]
    assert data["engine"] == {"deep_gemm.mul": "pending", "deep_select.topk": "excluded"}
    assert "factories" in synced.run("status").out and "pick_tl" in synced.run("status", "--names").out


def test_new_writes_a_skeleton_that_counts_as_pending(synced: Mini) -> None:
    synced.edit(
        "porter.toml",
        '[features.drops]\nreason = "nothing is dropped in basic mode"',
        '[features.drops]\nenabled = true\nreason = "on"',
    )
    assert synced.run("new", "drop_tl").code == 0
    text = synced.read(OVERRIDE)
    assert (
        "def drop_tl(width: int):" in text
        and "def kernel(x: torch.Tensor) -> None:" in text
        and "x*: T.float32 [n, width]" in text
    )
    compile(text, OVERRIDE, "exec")
    assert json.loads(synced.run("status", "--json").out)["factories"]["pending"] == 1
    assert synced.run("new", "drop_tl").code == 2
    assert synced.run("sync").code == 0
    assert "drop_tl: not implemented on Neuron yet" in synced.read(f"generated/{EMITTED}")


def test_new_shows_call_sites_and_the_reference(synced: Mini) -> None:
    (synced.project / OVERRIDE).unlink()
    out = synced.run("new", "pick_tl", "--dry-run").out
    assert "pick: pick_tl(x.shape[1])(x, index, y)" in out and "tilelang_ops.gather.pick_ref" in out
    assert not (synced.project / OVERRIDE).exists()


@pytest.mark.parametrize(
    ("name", "message"), [("pik_tl", "pick_tl"), ("deep_gemm.core.Engine.start", "porter new deep_gemm.core.Engine")]
)
def test_new_on_a_wrong_name(synced: Mini, name: str, message: str) -> None:
    result = synced.run("new", name)
    assert result.code == 2 and message in result.err


def test_new_on_a_class_and_a_function(synced: Mini) -> None:
    assert synced.run("new", "deep_gemm.core.Engine").code == 0
    assert synced.run("new", "deep_gemm.mul").code == 0
    text = synced.read("overrides/vendor/deep_gemm/core.py")
    assert "class Engine:" in text and "def mul(a, b=None, /, *, scale: float = 1.0):" in text


def test_a_class_override_gets_stubs_for_what_it_leaves_out(synced: Mini) -> None:
    synced.write(
        "overrides/vendor/deep_gemm/core.py",
        '''
        """Bodies of deep_gemm.core."""


        class Engine:
            """Two of upstream's three members."""

            def __init__(self, size: int, *, eager: bool = True) -> None:
                self.size = size

            @property
            def ready(self) -> bool:
                """Always."""
                return True
        ''',
    )
    synced.edit("porter.toml", '"deep_gemm.core.Engine"', '"deep_gemm.core.Engine.start"')
    synced.run("ack", "--all", "--reason", "written")
    assert synced.run("sync").code == 0
    text = synced.read("generated/deepinfer/neuron_ops/vendor/deep_gemm/core.py")
    assert (
        "def start(self, flag=None):" in text
        and "Engine.start: not implemented on Neuron yet" in text
        and "self.size = size" in text
    )
    assert codes(synced) == {}


def test_check_against_an_upstream(synced: Mini) -> None:
    synced.edit(f"upstream/{GATHER}", "width: int", "width: int = 3")
    found = codes(synced, "--upstream", str(synced.upstream / "deepinfer"))
    assert {row["symbol"] for row in found["PT040"]} == {"tilelang_ops.asc.gather.drop_tl"}


def test_a_warm_check_parses_nothing(synced: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    assert synced.run("check").code == 0

    def refuse(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr("porter.surface.python.extract", refuse)
    monkeypatch.setattr("porter.check.read_lock", refuse)
    assert synced.run("check").code == 0
    synced.edit(f"generated/{EMITTED}", "def pick_tl", "def  pick_tl")
    monkeypatch.undo()
    assert "PT003" in codes(synced), "the answer is never older than a byte"


def test_a_verdict_of_other_code_is_not_believed(synced: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept verdict is bound to the code that gave it: whoever edits a rule sees what the edited rule says."""
    assert codes(synced) == {}
    said = [Finding("PT103", "a rule that was just written", path=OVERRIDE, fix="obey it")]
    monkeypatch.setattr("porter.check.rule_findings", lambda *_: said)
    assert codes(synced) == {}
    monkeypatch.setattr("porter.check._own_code", lambda: "edited")
    assert set(codes(synced)) == {"PT103"}


def test_an_interrupted_sync_is_told_and_repaired(synced: Mini) -> None:
    from porter.tree import JOURNAL, MANIFEST

    journal = synced.project / "generated" / JOURNAL
    journal.write_bytes((synced.project / "generated" / MANIFEST).read_bytes())
    assert set(codes(synced)) == {"PT001"}
    assert synced.run("sync").code == 0
    assert codes(synced) == {}
