"""Files that would kill the parser are refused; ordinary ones never are."""

from __future__ import annotations

import pytest

from porter.errors import UnreadableFileError
from porter.surface.nesting import too_deep
from porter.surface.python import extract


@pytest.mark.parametrize(
    "data",
    [
        b"x = " + b"(" * 4000 + b")" * 4000,
        b"x = " + b"([{" * 500 + b"}])" * 500,
        b"x = " + b"[" * 50000,
        b"x = " + b"-" * 5000 + b"1",
        b"x = " + b"not " * 5000 + b"1",
        b"x = " + b"lambda: " * 5000 + b"1",
    ],
)
def test_refused(data: bytes) -> None:
    assert too_deep(data)
    with pytest.raises(UnreadableFileError, match="nested"):
        extract("deep.py", data + b"\n")


@pytest.mark.parametrize(
    "data",
    [
        b"x = " + b"(" * 150 + b"1" + b")" * 150 + b"\n",
        b"# " + b"(" * 100 + b"\n" + b"x = ')' * 3\n" * 2000,
        b"x = [\n" + b"    (1, {2: [3]}),\n" * 5000 + b"]\n",
        b"# -----------------------------------------------------------------\nx = - -1\n",
    ],
)
def test_accepted(data: bytes) -> None:
    assert not too_deep(data)
    assert extract("fine.py", data).constants or b"x" not in data
