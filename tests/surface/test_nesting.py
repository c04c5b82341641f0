"""Files that would kill the parser are refused; ordinary ones never are."""

from __future__ import annotations

import pytest

from porter.errors import UnreadableFileError
from porter.rules.engine import check_file
from porter.surface.nesting import check_nesting
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
    with pytest.raises(UnreadableFileError, match=r"deep\.py:1: (is nested|is not valid)"):
        check_nesting("deep.py", data)
    (finding,) = check_file("deep.py", data)
    assert finding.code == "PT100"
    with pytest.raises(UnreadableFileError, match=r"nested|not valid"):
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
    check_nesting("fine.py", data)
    assert extract("fine.py", data).constants or b"x" not in data
