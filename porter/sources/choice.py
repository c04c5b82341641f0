"""Which of a version's files to read, decided by file names alone; and the error for one that is not it."""

from __future__ import annotations

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion

from porter.errors import HashMismatchError

RELOCK = "if the index is right, delete this source's entry in porter.lock and run `porter sync`"
# Most wanted first.
_SDIST_SUFFIXES = (".tar.gz", ".zip", ".tar.xz", ".tar.bz2", ".tgz", ".txz", ".tbz")
_SYSTEMS = (("manylinux", "linux"), ("musllinux",), ("any",), ("macosx",), ("win",))
_MACHINES = (("x86_64", "amd64"), ("aarch64", "arm64"))
_INTERPRETER = "cp312"
_LAST = 9

type Preference = tuple[int, int, int, int, str]


def preference(filename: str) -> Preference:
    """Sort key of an archive's name, the preferred one smallest; independent of what runs porter.

    A wheel of pure Python first (it is the sources as installed), then a source archive, then other wheels: for Linux
    on x86_64, then aarch64, for CPython 3.12, then the stable ABI. Equals by name.
    """
    if not filename.endswith(".whl"):
        order = next((i for i, suffix in enumerate(_SDIST_SUFFIXES) if filename.lower().endswith(suffix)), _LAST)
        return (1, order, 0, 0, filename)
    try:
        tags = parse_wheel_filename(filename)[3]
    except (InvalidWheelFilename, InvalidVersion):
        return (_LAST, 0, 0, 0, filename)
    if all(tag.abi == "none" and tag.platform == "any" for tag in tags):
        return (0, 0, 0, 0, filename)
    return (2, *min(_tag(tag) for tag in tags), filename)


def _tag(tag: Tag) -> tuple[int, int, int]:
    system = next((i for i, names in enumerate(_SYSTEMS) if tag.platform.startswith(names)), _LAST)
    machine = next((i for i, names in enumerate(_MACHINES) if tag.platform.endswith(names)), _LAST)
    python = 0 if (tag.interpreter, tag.abi) == (_INTERPRETER, _INTERPRETER) else 1 if tag.abi == "abi3" else 2
    return system, machine, python


def mismatch(filename: str, *, expected: str, found: str) -> HashMismatchError:
    """The error for an archive that is not the one that porter.lock records."""
    return HashMismatchError(
        f"sha256 is not the one in porter.lock: expected {expected}, found {found}", path=filename, fix=RELOCK
    )
