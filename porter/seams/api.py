"""Puts the backend into a DeepInfer checkout and takes it out again."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from porter.findings import Finding
from porter.seams import manifest as manifests
from porter.seams import requirements, writer
from porter.seams.errors import (
    CheckoutError,
    DirtyCheckoutError,
    ForeignFileError,
    ModifiedSinceApplyError,
    NotAppliedError,
    SeamError,
)
from porter.seams.gitstate import dirty_paths, is_git_checkout
from porter.seams.manifest import EditedFile, Manifest, Record, State, digest
from porter.seams.model import AnchorError, ApplyPlan, Edit, FileChange, Seam
from porter.seams.pysource import splice
from porter.seams.registry import SEAMS

_SEAM_MOVED = "PT041"
_REQUIREMENTS = Seam("requirements", requirements.SOURCE, f"{requirements.PATH} is made from it", lambda data: ())


def plan(checkout: Path, payload: Mapping[str, bytes], *, seams: Sequence[Seam] = SEAMS) -> ApplyPlan:
    """What has to be written so that ``checkout`` holds ``payload`` and every seam.

    Parameters:
        checkout: root of an unpacked source archive or of a git checkout of DeepInfer.
        payload: new files, relative POSIX path -> content.
        seams: the edits of upstream's own files.

    Nothing is written. A checkout that was applied before is compared with what upstream was underneath, so that the
    plan of an unchanged backend is empty and that of a newer one is an upgrade.

    Raises SeamError listing every seam that does not fit, CheckoutError and its kin where the folder is not a
    checkout, holds changes that git does not know, files that are in the way, or files changed since the last apply.
    """
    checkout = _require_checkout(checkout)
    record = manifests.read(checkout)
    originals = _Originals(checkout, record)
    edits, findings = _find_edits(originals, seams)
    if findings:
        raise SeamError(findings)

    created = {**{_safe(path): content for path, content in payload.items()}, **_derived(originals)}
    collisions = sorted(set(created) & set(edits))
    if collisions:
        raise CheckoutError(
            f"the payload holds files that seams edit: {', '.join(collisions)}", fix="take them out of overrides/engine"
        )
    for path in created:
        originals.read(path)
    originals.require_unmodified()
    foreign = [path for path in sorted(created) if originals.read(path) is not None]
    if foreign:
        raise ForeignFileError(foreign)
    _require_clean(checkout, record, [*edits, *created])

    wanted: dict[str, bytes] = dict(created)
    edited: dict[str, EditedFile] = {}
    for path, found in edits.items():
        before = originals.require(path)
        wanted[path] = splice(before, found.edits)
        edited[path] = EditedFile(digest(before), digest(wanted[path]), found.edits, found.seams)
    folders = {*(record.folders if record is not None else ()), *writer.new_folders(checkout, list(created))}
    target = Record({path: digest(content) for path, content in created.items()}, edited, tuple(sorted(folders)))
    final = Manifest(State.APPLIED, (target,))
    changes = _changes(originals, wanted, edited, record)
    return ApplyPlan(checkout, changes, final.encode())


def apply(plan: ApplyPlan, *, dry_run: bool = False) -> None:
    """Write ``plan``: everything or nothing. ``dry_run`` writes nothing at all.

    Raises ModifiedSinceApplyError where a file changed after the plan was made, BusyError where another porter works
    on the checkout, TreeError where the file system refuses.
    """
    current = manifests.read(plan.checkout)
    final = manifests.decode(plan.manifest)
    settled = current is not None and current.state is State.APPLIED and current.encode() == plan.manifest
    if dry_run or (plan.up_to_date and settled):
        return
    with writer.locked(plan.checkout):
        moved = [change.path for change in plan.changes if _read(plan.checkout, change.path) != change.before]
        if moved:
            raise ModifiedSinceApplyError(moved)
        history = current.records if current is not None else ()
        during = Manifest(State.APPLYING, (*final.records, *history))
        writer.write(plan.checkout, plan.changes, during, final)
        gone = [change.path for change in plan.changes if change.after is None]
        writer.remove_folders(plan.checkout, final.folders, gone)


def revert(checkout: Path) -> tuple[str, ...]:
    """Undo what was applied, also half of it: upstream's files get their own bytes back, porter's are removed.

    Returns the paths that changed. Raises NotAppliedError where nothing was applied, ModifiedSinceApplyError where a
    file is neither as porter left it nor as upstream had it.
    """
    checkout = _require_checkout(checkout)
    record = manifests.read(checkout)
    if record is None:
        raise NotAppliedError(
            "nothing was applied to this checkout", path=str(checkout), fix="run `porter apply` first"
        )
    originals = _Originals(checkout, record)
    for path in record.paths:
        originals.read(path)
    originals.require_unmodified()
    changes = tuple(
        FileChange(path, _read(checkout, path), originals.read(path), originals.mode(path))
        for path in record.paths
        if _read(checkout, path) != originals.read(path)
    )
    with writer.locked(checkout):
        writer.write(checkout, changes, Manifest(State.REVERTING, record.records), None)
        writer.remove_folders(checkout, record.folders, [path for path in record.paths if record.created(path)])
    return tuple(change.path for change in changes)


def check(checkout: Path, *, seams: Sequence[Seam] = SEAMS) -> tuple[Finding, ...]:
    """Seams whose anchor moved (PT041), in ``checkout`` as upstream had it. Raises CheckoutError where there is no checkout."""
    checkout = _require_checkout(checkout)
    originals = _Originals(checkout, manifests.read(checkout))
    return _find_edits(originals, seams)[1]


# ---------------------------------------------------------------- the parts


@dataclass(frozen=True)
class _Found:
    edits: tuple[Edit, ...]
    seams: tuple[str, ...]


class _Originals:
    """Files of a checkout as they were before porter, whatever an earlier apply did to them."""

    def __init__(self, checkout: Path, record: Manifest | None) -> None:
        self._checkout = checkout
        self._record = record
        self._cache: dict[str, bytes | None] = {}
        self._modified: set[str] = set()

    def read(self, path: str) -> bytes | None:
        """Upstream's content of ``path``, None where upstream has no such file."""
        if path not in self._cache:
            current = _read(self._checkout, path)
            try:
                self._cache[path] = current if self._record is None else self._record.original(path, current)
            except KeyError:
                self._modified.add(path)
                self._cache[path] = None
        return self._cache[path]

    def require(self, path: str) -> bytes:
        """As ``read``, for a file that was found before."""
        data = self.read(path)
        if data is None:
            raise CheckoutError("the file vanished", path=path, fix="run the command again")
        return data

    def modified(self, path: str) -> bool:
        """Whether ``path`` was changed by somebody since porter wrote it."""
        self.read(path)
        return path in self._modified

    def require_unmodified(self) -> None:
        """Raise ModifiedSinceApplyError where a file read so far was changed since porter wrote it."""
        if self._modified:
            raise ModifiedSinceApplyError(sorted(self._modified))

    def current(self, path: str) -> bytes | None:
        """The content of ``path`` as it is now."""
        return _read(self._checkout, path)

    def mode(self, path: str) -> int:
        """Permission bits of ``path``."""
        try:
            return stat.S_IMODE((self._checkout / path).stat().st_mode)
        except FileNotFoundError:
            return 0o644


def _find_edits(originals: _Originals, seams: Sequence[Seam]) -> tuple[dict[str, _Found], tuple[Finding, ...]]:
    edits: dict[str, _Found] = {}
    findings: list[Finding] = []
    for seam in (*seams, _REQUIREMENTS):
        data = originals.read(seam.path)
        if originals.modified(seam.path):
            continue  # reported with the other modified files
        if data is None:
            findings.append(_finding(seam, 1, f"the file, for: {seam.purpose}", "no such file"))
            continue
        try:
            found = seam.edits(data)
        except AnchorError as error:
            findings.append(_finding(seam, error.line, error.expected, error.found))
            continue
        if not found:
            continue
        before = edits.get(seam.path, _Found((), ()))
        edits[seam.path] = _Found((*before.edits, *found), (*before.seams, seam.name))
    if not findings:
        originals.require_unmodified()
    return edits, tuple(findings)


def _finding(seam: Seam, line: int, expected: str, found: str) -> Finding:
    return Finding(
        code=_SEAM_MOVED,
        message=f"seam {seam.name}",
        symbol=f"seams.{seam.name}",
        path=seam.path,
        line=line,
        expected=expected,
        found=found,
        fix=f"adapt the seam {seam.name} in porter/seams to the new upstream",
    )


def _derived(originals: _Originals) -> dict[str, bytes]:
    text = originals.require(requirements.SOURCE)
    return {
        requirements.PATH: requirements.derive(text.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
    }


def _changes(
    originals: _Originals, wanted: Mapping[str, bytes], edited: Mapping[str, EditedFile], record: Manifest | None
) -> tuple[FileChange, ...]:
    stale = [path for path in (record.paths if record is not None else ()) if path not in wanted]
    result: list[FileChange] = []
    for path in sorted({*wanted, *stale}):
        current = originals.current(path)
        after = wanted[path] if path in wanted else originals.read(path)
        if current != after:
            seams = edited[path].seams if path in edited else ()
            result.append(FileChange(path, current, after, originals.mode(path), seams))
    return tuple(result)


def _require_checkout(checkout: Path) -> Path:
    root = checkout.resolve()
    if not (root / "deepinfer").is_dir() or not (root / "setup.py").is_file():
        raise CheckoutError(
            "not a DeepInfer checkout: expected the folder deepinfer/ and the file setup.py in it",
            path=str(checkout),
            fix="name the root of an unpacked deepinfer source archive or of a git checkout",
        )
    return root


def _require_clean(checkout: Path, record: Manifest | None, paths: Sequence[str]) -> None:
    if not is_git_checkout(checkout):
        return
    ours = [path for path in paths if record is None or not record.knows(path)]
    dirty = dirty_paths(checkout, sorted(ours))
    if dirty:
        raise DirtyCheckoutError(dirty)


def _safe(path: str) -> str:
    pure = PurePosixPath(path)
    if (
        pure.is_absolute()
        or not pure.parts
        or ".." in pure.parts
        or pure.as_posix() != path
        or pure.parts[0] in (".git", ".porter")
    ):
        raise CheckoutError(f"the payload names {path!r}, which is not a plain path inside the checkout")
    return path


def _read(checkout: Path, path: str) -> bytes | None:
    target = checkout / path
    if target.is_symlink() or checkout not in target.resolve().parents:
        raise CheckoutError(
            "is a link, or lies behind one that leaves the checkout", path=path, fix="replace it by a plain file"
        )
    try:
        return target.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckoutError(
            f"cannot be read: {error.strerror or error}", path=path, fix="see that it can be read"
        ) from error
