"""Applying to a checkout and reverting: everything or nothing, and never a byte off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import BusyError, TreeError
from porter.seams import api, manifest, requirements, writer
from porter.seams.errors import (
    CheckoutError,
    DirtyCheckoutError,
    ForeignFileError,
    ManifestError,
    ModifiedSinceApplyError,
    NotAppliedError,
)
from porter.seams.model import Seam
from porter.seams.registry import SEAMS
from tests.seams.conftest import snapshot

# Three seams stand for all of them where a test is about writing, not about anchors.
FEW = tuple(seam for seam in SEAMS if seam.name in ("package-init", "numa-binding", "pinned-load-plan"))


def apply(checkout: Path, payload: dict[str, bytes], seams: tuple[Seam, ...] = FEW) -> None:
    api.apply(api.plan(checkout, payload, seams=seams))


def git(checkout: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t",
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


@pytest.fixture
def git_checkout(checkout: Path) -> Path:
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "upstream")
    return checkout


def test_apply_then_revert_gives_the_same_tree_to_the_byte(checkout: Path, payload: dict[str, bytes]) -> None:
    (checkout / "setup.py").chmod(0o755)
    before = snapshot(checkout)
    api.apply(api.plan(checkout, payload))
    after = snapshot(checkout, without_record=True)
    assert {seam.path for seam in SEAMS} <= {path for path in after if after[path] != before.get(path)}
    assert all((checkout / path).read_bytes() == content for path, content in payload.items())
    assert stat.S_IMODE((checkout / "setup.py").stat().st_mode) == 0o755
    reverted = api.revert(checkout)
    assert snapshot(checkout) == before
    assert set(payload) | {requirements.PATH} | {seam.path for seam in SEAMS} == set(reverted)


def test_a_second_apply_changes_nothing(checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    before = snapshot(checkout)
    plan = api.plan(checkout, payload, seams=FEW)
    assert plan.up_to_date and plan.diff() == ""
    api.apply(plan)
    assert snapshot(checkout) == before


def test_a_dry_run_shows_the_diff_and_writes_nothing(checkout: Path, payload: dict[str, bytes]) -> None:
    before = snapshot(checkout)
    plan = api.plan(checkout, payload, seams=FEW)
    api.apply(plan, dry_run=True)
    assert snapshot(checkout) == before
    diff = plan.diff()
    assert "--- a/deepinfer/__init__.py\n+++ b/deepinfer/__init__.py\n" in diff
    assert "+    bootstrap.start(__path__, _so_dir)\n" in diff
    assert "--- /dev/null\n+++ b/csrc/neuron/target.hpp\n@@ -0,0 +1 @@\n+#pragma once\n" in diff


def test_the_diff_applies_with_patch(checkout: Path, payload: dict[str, bytes], tmp_path: Path) -> None:
    """The printed diff is the whole truth: patch(1) makes the same tree from it."""
    shutil.copytree(checkout, tmp_path / "patched")
    plan = api.plan(checkout, payload, seams=FEW)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", f"--directory={tmp_path / 'patched'}"],
        input=plan.diff().encode(),
        check=True,
        cwd="/",
    )
    api.apply(plan)
    assert {path: item[0] for path, item in snapshot(tmp_path / "patched").items()} == {
        path: item[0] for path, item in snapshot(checkout, without_record=True).items()
    }


def test_a_newer_payload_upgrades_and_still_reverts(checkout: Path, payload: dict[str, bytes]) -> None:
    before = snapshot(checkout)
    apply(checkout, payload)
    newer = {**payload, "csrc/neuron/target.hpp": b"// new\n", "deepinfer/neuron_ops/more/a.py": b"y = 1\n"}
    del newer["deepinfer/neuron_ops/deep/er/module.py"]
    plan = api.plan(checkout, newer, seams=FEW)
    assert {change.path: change.after for change in plan.changes} == {
        "csrc/neuron/target.hpp": b"// new\n",
        "deepinfer/neuron_ops/more/a.py": b"y = 1\n",
        "deepinfer/neuron_ops/deep/er/module.py": None,
    }
    api.apply(plan)
    assert not (checkout / "deepinfer/neuron_ops/deep").exists()
    api.apply(api.plan(checkout, newer, seams=SEAMS))
    api.revert(checkout)
    assert snapshot(checkout) == before


def test_byte_code_of_our_files_goes_with_them(checkout: Path, payload: dict[str, bytes]) -> None:
    before = snapshot(checkout)
    apply(checkout, payload)
    folder = checkout / "deepinfer/neuron_ops/deep/er/__pycache__"
    folder.mkdir()
    (folder / "module.cpython-312.pyc").write_bytes(b"x")
    api.revert(checkout)
    assert snapshot(checkout) == before


def test_a_users_file_in_our_folder_survives(checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    (checkout / "deepinfer/neuron_ops/notes.txt").write_text("mine")
    api.revert(checkout)
    assert (checkout / "deepinfer/neuron_ops/notes.txt").read_text() == "mine"
    assert not (checkout / "deepinfer/neuron_ops/deep").exists()


def test_windows_line_ends_survive_apply_and_revert(checkout: Path, payload: dict[str, bytes]) -> None:
    for seam in FEW:
        path = checkout / seam.path
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = snapshot(checkout)
    apply(checkout, payload)
    assert b"\n" not in (checkout / "deepinfer/__init__.py").read_bytes().replace(b"\r\n", b"")
    api.revert(checkout)
    assert snapshot(checkout) == before


# ---------------------------------------------------------------- refusals


def refused(checkout: Path, error: type[Exception], match: str, act: Callable[[], object]) -> None:
    before = snapshot(checkout)
    with pytest.raises(error, match=match):
        act()
    assert snapshot(checkout) == before


def test_a_file_in_the_way_is_refused(checkout: Path, payload: dict[str, bytes]) -> None:
    (checkout / "csrc/neuron").mkdir()
    (checkout / "csrc/neuron/target.hpp").write_bytes(payload["csrc/neuron/target.hpp"])
    refused(checkout, ForeignFileError, "csrc/neuron/target.hpp", lambda: api.plan(checkout, payload, seams=FEW))


@pytest.mark.parametrize("path", ["deepinfer/__init__.py", "csrc/neuron/target.hpp"])
def test_a_file_changed_since_apply_is_refused_both_ways(path: str, checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    with (checkout / path).open("a") as file:
        file.write("// mine\n" if path.endswith("hpp") else "# mine\n")
    refused(checkout, ModifiedSinceApplyError, path, lambda: api.plan(checkout, payload, seams=FEW))
    refused(checkout, ModifiedSinceApplyError, path, lambda: api.revert(checkout))


def test_an_edited_file_that_is_gone_is_refused(checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    (checkout / "deepinfer/__init__.py").unlink()
    refused(checkout, ModifiedSinceApplyError, "deepinfer/__init__.py", lambda: api.revert(checkout))


def test_a_file_that_the_user_put_back_is_fine(checkout: Path, payload: dict[str, bytes]) -> None:
    before = snapshot(checkout)
    original = (checkout / "deepinfer/__init__.py").read_bytes()
    apply(checkout, payload)
    (checkout / "deepinfer/__init__.py").write_bytes(original)
    (checkout / "csrc/neuron/target.hpp").unlink()
    assert {change.path for change in api.plan(checkout, payload, seams=FEW).changes} == {
        "deepinfer/__init__.py", "csrc/neuron/target.hpp",
    }  # fmt: skip
    api.revert(checkout)
    assert snapshot(checkout) == before


def test_a_file_that_changes_between_plan_and_apply_is_refused(checkout: Path, payload: dict[str, bytes]) -> None:
    plan = api.plan(checkout, payload, seams=FEW)
    (checkout / "deepinfer/__init__.py").write_text("x = 1\n")
    refused(checkout, ModifiedSinceApplyError, "deepinfer/__init__.py", lambda: api.apply(plan))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "", ".git/hooks/x", ".porter/applied.json"]
)
def test_a_payload_cannot_leave_the_checkout(path: str, checkout: Path) -> None:
    refused(checkout, CheckoutError, "plain path", lambda: api.plan(checkout, {path: b""}, seams=FEW))


def test_a_payload_cannot_hold_a_file_that_a_seam_edits(checkout: Path) -> None:
    refused(
        checkout, CheckoutError, "seams edit", lambda: api.plan(checkout, {"deepinfer/__init__.py": b""}, seams=FEW)
    )


def test_links_are_not_followed(checkout: Path, payload: dict[str, bytes], tmp_path: Path) -> None:
    target = checkout / "deepinfer/__init__.py"
    shutil.move(target, tmp_path / "elsewhere.py")
    target.symlink_to(tmp_path / "elsewhere.py")
    refused(checkout, CheckoutError, "is a link", lambda: api.plan(checkout, payload, seams=FEW))
    outside = tmp_path / "outside"
    outside.mkdir()
    target.unlink()
    shutil.move(tmp_path / "elsewhere.py", target)
    (checkout / "csrc/neuron").symlink_to(outside)
    refused(checkout, CheckoutError, "leaves the checkout", lambda: api.plan(checkout, payload, seams=FEW))


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_that_is_no_checkout_is_refused(name: str, tmp_path: Path, payload: dict[str, bytes]) -> None:
    (tmp_path / "empty").mkdir()
    for act in (lambda folder: api.plan(folder, payload), api.revert, api.check):
        with pytest.raises(CheckoutError, match="not a DeepInfer checkout"):
            act(tmp_path / name)


def test_nothing_to_revert(checkout: Path) -> None:
    refused(checkout, NotAppliedError, "nothing was applied", lambda: api.revert(checkout))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"version": 99}', b'{"version": 1, "state": "x", "records": []}', b"\xff"]
)
def test_a_broken_record_is_refused(data: bytes, checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    (checkout / manifest.PATH).write_bytes(data)
    refused(checkout, ManifestError, "apply record", lambda: api.plan(checkout, payload, seams=FEW))
    refused(checkout, ManifestError, "apply record", lambda: api.revert(checkout))


# ---------------------------------------------------------------- git


def test_a_git_checkout_reverts_to_a_clean_status(git_checkout: Path, payload: dict[str, bytes]) -> None:
    before = snapshot(git_checkout)
    apply(git_checkout, payload)
    assert " M deepinfer/__init__.py" in git(git_checkout, "status", "--porcelain")
    assert manifest.FOLDER not in git(git_checkout, "status", "--porcelain", "--untracked-files=all")
    assert api.plan(git_checkout, payload, seams=FEW).up_to_date
    api.revert(git_checkout)
    assert git(git_checkout, "status", "--porcelain") == ""
    assert snapshot(git_checkout) == before


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_file_that_would_be_written_is_refused(
    staged: bool, git_checkout: Path, payload: dict[str, bytes]
) -> None:
    with (git_checkout / "deepinfer/__init__.py").open("a") as file:
        file.write("# mine\n")
    if staged:
        git(git_checkout, "add", "-A")
    refused(
        git_checkout, DirtyCheckoutError, r"deepinfer/__init__\.py", lambda: api.plan(git_checkout, payload, seams=FEW)
    )


def test_other_dirty_files_do_not_matter(git_checkout: Path, payload: dict[str, bytes]) -> None:
    (git_checkout / "README.md").write_text("mine")
    (git_checkout / "new file ü.txt").write_text("mine")
    apply(git_checkout, payload)
    assert (git_checkout / "README.md").read_text() == "mine"


def test_a_git_checkout_without_git_is_refused(
    git_checkout: Path, payload: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    refused(git_checkout, CheckoutError, "git cannot be run", lambda: api.plan(git_checkout, payload, seams=FEW))


# ---------------------------------------------------------------- half way


@pytest.mark.parametrize("at", range(1, 9))
def test_a_failing_write_leaves_nothing_behind(
    at: int, checkout: Path, payload: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(checkout)
    plan = api.plan(checkout, payload, seams=FEW)
    real, calls = os.replace, [0]

    def failing(source: str, target: str) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(writer.os, "replace", failing)
    with pytest.raises(TreeError, match="No space left on device; nothing was changed"):
        api.apply(plan)
    assert calls[0] >= at
    assert snapshot(checkout) == before


def test_a_full_disk_while_staging_leaves_nothing_behind(
    checkout: Path, payload: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(checkout)
    plan = api.plan(checkout, payload, seams=FEW)
    real = os.fsync

    def failing(handle: int) -> None:
        if "module.py" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(writer.os, "fsync", failing)
    with pytest.raises(TreeError, match="No space left on device"):
        api.apply(plan)
    assert snapshot(checkout) == before


@pytest.mark.parametrize(
    ("command", "at"),
    [
        *(("apply", at) for at in (1, 2, 5, 9)),
        *(("upgrade", at) for at in (1, 3, 4)),
        *(("revert", at) for at in (1, 2, 4)),
    ],
)
def test_killed_at_any_moment_both_commands_go_on(
    command: str, at: int, checkout: Path, payload: dict[str, bytes]
) -> None:
    """SIGKILL before the n-th rename; afterwards revert restores, and apply completes."""
    before = snapshot(checkout)
    newer = {**payload, "csrc/neuron/target.hpp": b"// new\n", "deepinfer/x_new.py": b"\n"}
    if command != "apply":
        apply(checkout, payload)
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from porter.seams import api, writer
        from tests.seams.test_apply import FEW
        real, calls = os.replace, [0]
        def killing(source, target):
            calls[0] += 1
            if calls[0] == {at}:
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)
        writer.os.replace = killing
        checkout = Path({str(checkout)!r})
        if {command!r} == "revert":
            api.revert(checkout)
        else:
            api.apply(api.plan(checkout, {payload if command == "apply" else newer!r}, seams=FEW))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL, "the command ended before it was killed"
    again = checkout.parent / "again"
    shutil.copytree(checkout, again)
    if (again / manifest.PATH).exists():
        api.revert(again)
    assert {path for path in snapshot(again) if not path.startswith(manifest.FOLDER)} == set(before)
    assert {path: item for path, item in snapshot(again).items() if path in before} == before
    apply(checkout, newer)
    assert api.plan(checkout, newer, seams=FEW).up_to_date
    assert not list(checkout.rglob("*.porter-new"))
    api.revert(checkout)
    assert snapshot(checkout) == before


def test_two_at_once_is_one_too_many(checkout: Path, payload: dict[str, bytes]) -> None:
    plan = api.plan(checkout, payload, seams=FEW)
    before = snapshot(checkout)
    with writer.locked(checkout), pytest.raises(BusyError):
        api.apply(plan)
    assert snapshot(checkout) == before


def test_the_record_is_plain_sorted_json(checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    data = (checkout / manifest.PATH).read_bytes()
    value = json.loads(data)
    assert data == (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    assert value["state"] == "applied" and len(value["records"]) == 1
    assert str(checkout) not in data.decode()


# ---------------------------------------------------------------- requirements


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("tilelang==0.1.15", False),
        ("tile-kernels==2.1.0", False),
        ("Tile_Kernels >= 2", False),
        ("torch==2.13.0+cpu", False),
        ("torch", False),
        ("torchvision==1", True),
        ("tilelang-extra==1", True),
        ("numpy==2.3.5  # torch", True),
        ("# torch", True),
        ("-r other.txt", True),
        ("", True),
    ],
)
def test_requirements_leave_out_what_neuron_brings(line: str, kept: bool) -> None:
    assert (line in requirements.derive(f"{line}\n").splitlines()[1:]) is kept


def test_requirements_neuron_is_upstreams_without_three(checkout: Path, payload: dict[str, bytes]) -> None:
    apply(checkout, payload)
    upstream = (checkout / "requirements.txt").read_text().splitlines()
    ours = (checkout / requirements.PATH).read_text().splitlines()
    assert ours[1:] == [line for line in upstream if line.split("==")[0] not in ("tilelang", "tile-kernels", "torch")]
    assert len(ours) - 1 == len(upstream) - 2  # upstream names torch elsewhere
