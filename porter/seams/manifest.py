"""The record of what was applied to a checkout, kept inside the checkout, from which everything can be undone."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from porter.seams.errors import ManifestError
from porter.seams.model import Edit
from porter.seams.pysource import splice

FOLDER = ".porter"
PATH = f"{FOLDER}/applied.json"
IGNORE_PATH = f"{FOLDER}/.gitignore"

_VERSION = 1


class State(StrEnum):
    """Where an apply or a revert stands. Anything but APPLIED was interrupted; both commands can go on from there."""

    APPLYING = "applying"
    APPLIED = "applied"
    REVERTING = "reverting"


@dataclass(frozen=True)
class EditedFile:
    """An upstream file: digests before and after, and the edits that lead from one to the other."""

    before: str
    after: str
    edits: tuple[Edit, ...]
    seams: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One applied state: files made (path -> digest), files edited, folders made."""

    created: Mapping[str, str]
    edited: Mapping[str, EditedFile]
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """``records[0]`` is the state being reached; a second one is the state that an unfinished upgrade left."""

    state: State
    records: tuple[Record, ...] = field(default=())

    def original(self, path: str, current: bytes | None) -> bytes | None:
        """What ``path`` held before porter: ``current`` with its edits undone, None where porter made the file.

        Raises KeyError where ``current`` is none of the states that the records know.
        """
        if current is None:
            if any(path in record.edited for record in self.records):
                raise KeyError(path)
            return None
        found = digest(current)
        for record in self.records:
            if path in record.created:
                if record.created[path] == found:
                    return None
                continue
            edited = record.edited.get(path)
            if edited is None:
                continue
            if edited.before == found:
                return current
            if edited.after == found:
                return splice(current, reverse(edited.edits))
        if self.knows(path):
            raise KeyError(path)
        return current

    def knows(self, path: str) -> bool:
        """Whether a record made or edited ``path``."""
        return any(path in record.created or path in record.edited for record in self.records)

    def created(self, path: str) -> bool:
        """Whether a record made ``path``."""
        return any(path in record.created for record in self.records)

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths of all records, sorted."""
        return tuple(sorted({path for record in self.records for path in (*record.created, *record.edited)}))

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders made, sorted."""
        return tuple(sorted({folder for record in self.records for folder in record.folders}))

    def encode(self) -> bytes:
        """JSON text: sorted keys, LF, newline at the end."""
        value = {
            "version": _VERSION,
            "state": self.state.value,
            "records": [_encode_record(record) for record in self.records],
        }
        return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def digest(data: bytes) -> str:
    """sha256 of ``data``, in hex."""
    return hashlib.sha256(data).hexdigest()


def reverse(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits that undo ``edits``, placed in the edited file."""
    shift = 0
    undone: list[Edit] = []
    for edit in sorted(edits, key=lambda item: item.offset):
        undone.append(Edit(edit.offset + shift, edit.added, edit.removed))
        shift += len(edit.added) - len(edit.removed)
    return tuple(undone)


def read(checkout: Path) -> Manifest | None:
    """The manifest in ``checkout``, or None. Raises ManifestError where it cannot be read."""
    try:
        data = (checkout / PATH).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(
            f"cannot be read: {error.strerror or error}", path=PATH, fix="see that it can be read"
        ) from error
    return decode(data)


def decode(data: bytes) -> Manifest:
    """The manifest that ``data`` encodes. Raises ManifestError where it is none."""
    try:
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise ManifestError(
                f"version {value['version']} of the apply record; this porter knows {_VERSION}",
                path=PATH,
                fix="run the porter that applied this checkout",
            )
        return Manifest(State(value["state"]), tuple(_decode_record(record) for record in value["records"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"not an apply record ({type(error).__name__}: {error})",
            path=PATH,
            fix="restore the file, or unpack DeepInfer anew and apply to that",
        ) from error


def _encode_record(record: Record) -> dict[str, Any]:
    return {
        "created": dict(record.created),
        "folders": list(record.folders),
        "edited": {
            path: {
                "before": item.before,
                "after": item.after,
                "seams": list(item.seams),
                "edits": [
                    {
                        "offset": edit.offset,
                        "removed": base64.b64encode(edit.removed).decode(),
                        "added": base64.b64encode(edit.added).decode(),
                    }
                    for edit in item.edits
                ],
            }
            for path, item in record.edited.items()
        },
    }


def _decode_record(value: Any) -> Record:
    return Record(
        created={str(path): str(sha) for path, sha in value["created"].items()},
        folders=tuple(str(folder) for folder in value["folders"]),
        edited={
            str(path): EditedFile(
                before=str(item["before"]),
                after=str(item["after"]),
                seams=tuple(str(name) for name in item["seams"]),
                edits=tuple(
                    Edit(
                        int(edit["offset"]),
                        base64.b64decode(edit["removed"], validate=True),
                        base64.b64decode(edit["added"], validate=True),
                    )
                    for edit in item["edits"]
                ),
            )
            for path, item in value["edited"].items()
        },
    )
