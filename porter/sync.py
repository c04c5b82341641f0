"""`porter sync`: read the upstream, emit the backend, write the lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from porter.config import Config
from porter.errors import LockError
from porter.excerpts import remember
from porter.inputs import inputs_digest, override_digests
from porter.lock import Lock, read_lock, write_lock
from porter.overrides import Overrides, load_overrides
from porter.plan import Plan, make_plan
from porter.render.output import render
from porter.sources.progress import Progress
from porter.tree import Changes, exclusive, plan_changes, publish, read_state, write_atomic
from porter.upstream import Request, read_upstream


@dataclass(frozen=True)
class SyncResult:
    """What a sync did, or would do: changes of the emitted tree, whether the lock changed, and the plan behind them.

    ``old``/``new`` hold the texts of changed files when a difference was asked for.
    """

    plan: Plan
    changes: Changes
    lock_changed: bool
    texts: Mapping[str, tuple[bytes, bytes]]


def known_lock(config: Config) -> Lock | None:
    """The lock on disk, None when there is none yet.

    Raises:
        LockError: it is there and cannot be read.
    """
    return read_lock(config.lock_path) if config.lock_path.exists() else None


def sync(
    config: Config,
    request: Request,
    *,
    out: Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    want_texts: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> SyncResult:
    """Bring lock and emitted tree up to the upstream. Everything is rendered before anything is written; the lock goes last.

    Raises:
        PorterError: any cause named in porter.errors; then nothing was written.
    """
    old = _old_lock(config, force=force)
    upstream = read_upstream(config, request, old, cache=cache, progress=progress)
    overrides = load_overrides(config.overrides_path)
    result = emit(config, upstream.lock, overrides, out=out, dry_run=dry_run, force=force, want_texts=want_texts)
    roots = {name: source.root for name, source in upstream.sources.items()}
    supplied = [entry.symbol for entry in result.plan.entries if entry.override and not entry.is_member]
    remember(supplied, roots, declarations=config.declarations_path, cache=cache)
    return result


def _old_lock(config: Config, *, force: bool) -> Lock | None:
    try:
        return known_lock(config)
    except LockError:
        if force:
            return None
        raise


def emit(
    config: Config,
    lock: Lock,
    overrides: Overrides,
    *,
    out: Path | None = None,
    dry_run: bool = False,
    force: bool = False,
    want_texts: bool = False,
) -> SyncResult:
    """Render a lock and publish it."""
    target = out or config.out_path
    lock_text = write_lock(lock)
    inputs = inputs_digest(config, lock_text, override_digests(config.overrides_path))
    plan = make_plan(config, lock, overrides)
    files = render(plan, overrides.folder)
    lock_path = config.lock_for(out)
    lock_changed = not lock_path.exists() or lock_path.read_bytes() != lock_text.encode()
    if dry_run:
        state = read_state(target)
        changes = plan_changes(target, state, files)
        return SyncResult(plan, changes, lock_changed, _texts(target, changes, files) if want_texts else {})
    with exclusive(target):
        state = read_state(target)
        texts = _texts(target, plan_changes(target, state, files), files) if want_texts else {}
        changes = publish(target, state, files, inputs, force=force)
        if lock_changed:
            write_atomic(lock_path, lock_text.encode())
    return SyncResult(plan, changes, lock_changed, texts)


def _texts(out: Path, changes: Changes, files: Mapping[str, bytes]) -> Mapping[str, tuple[bytes, bytes]]:
    rows: dict[str, tuple[bytes, bytes]] = {path: (b"", files[path]) for path in changes.created}
    rows.update({path: ((out / path).read_bytes(), files[path]) for path in changes.changed})
    rows.update({path: ((out / path).read_bytes(), b"") for path in changes.removed})
    return dict(sorted(rows.items()))
