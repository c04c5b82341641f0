"""What git says about a checkout."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from porter.seams.errors import CheckoutError


def is_git_checkout(checkout: Path) -> bool:
    """Whether ``checkout`` is the root of a git work tree (a linked one too)."""
    return (checkout / ".git").exists()


def dirty_paths(checkout: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of ``paths`` that git sees as changed, staged, untracked or conflicted. Raises CheckoutError without git."""
    if not paths:
        return ()
    command = ["git", "-C", str(checkout), "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", *paths]
    try:
        done = subprocess.run(
            command, capture_output=True, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, check=False
        )
    except OSError as error:
        raise CheckoutError(
            f"{checkout} is a git checkout, but git cannot be run: {error.strerror or error}",
            fix="install git, or apply to an unpacked source archive",
        ) from error
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise CheckoutError(
            f"git status failed in {checkout}: {reason[-1] if reason else done.returncode}", fix="mend the git checkout"
        )
    entries = [
        entry
        for entry in done.stdout.decode(errors="surrogateescape").split("\0")
        if len(entry) > 3 and entry[2] == " "
    ]
    return tuple(sorted({entry[3:] for entry in entries}))
