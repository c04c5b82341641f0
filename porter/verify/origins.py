"""From a line of an emitted module back to the line of the override it was made from.

Emission reorders imports and formats; bodies stay as they are. So lines are matched text by text, and a line that was
formatted differently goes by its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path


def matching_lines(emitted: str, source: str) -> tuple[int, ...]:
    """For every line of ``emitted``, the 1-based line of ``source`` that it came from; 0 where there is none.

    >>> matching_lines("# made\\nimport a\\n\\ndef f():\\n    return 1\\n", "import a\\n\\n\\ndef f():\\n    return 1\\n")
    (0, 1, 2, 4, 5)
    """
    left = [line.strip() for line in emitted.splitlines()]
    right = [line.strip() for line in source.splitlines()]
    found = [0] * len(left)
    for tag, start, end, other, other_end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag in ("equal", "replace") and other_end > other:
            for at in range(start, end):
                found[at] = 1 + min(other + at - start, other_end - 1)
    return tuple(found)


@dataclass
class Origins:
    """``root``: the tree that ran. ``table``: path in it to the file it was made from, relative to ``project``."""

    root: Path
    table: Mapping[str, str]
    project: Path
    _lines: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def place(self, path: str, line: int) -> tuple[str, int]:
        """The path and line that a user would edit, for a path and line of the tree."""
        if not path:
            return path, line
        try:
            inside = Path(path).resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return path, line
        source = self.table.get(inside)
        if source is None:
            return inside, line
        if inside not in self._lines:
            try:
                texts = [file.read_text(encoding="utf-8") for file in (self.root / inside, self.project / source)]
            except OSError:
                return inside, line
            self._lines[inside] = matching_lines(*texts)
        lines = self._lines[inside]
        found = lines[line - 1] if 0 < line <= len(lines) else 0
        return (source, found) if found else (inside, line)
