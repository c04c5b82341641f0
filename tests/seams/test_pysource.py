"""Finding and editing Python by structure."""

from __future__ import annotations

import pytest

from porter.seams.model import AnchorError, Edit
from porter.seams.pysource import PythonSource, python_edits, splice

SOURCE = '''"""Doc."""
from a import b, c


class K:
    x: int

    def m(self, p, *, q=1):
        """Says.

        More.
        """
        return b(p)

    def n(self):
        return 1


def f():
    if c:
        k = 1
    else:
        k = 2
    return k
'''


def edited(edit: Edit | tuple[Edit, ...], source: str = SOURCE) -> str:
    return splice(source.encode(), edit if isinstance(edit, tuple) else (edit,)).decode()


def test_body_start_after_docstring() -> None:
    source = PythonSource(SOURCE.encode())
    text = edited(source.at_body_start(source.function("m", source.class_("K")), "if q:\n    return 0"))
    assert '        """\n        if q:\n            return 0\n\n        return b(p)\n' in text


def test_body_start_without_docstring() -> None:
    source = PythonSource(SOURCE.encode())
    assert "def f():\n    import z\n\n    if c:\n" in edited(source.at_body_start(source.function("f"), "import z"))


def test_before_and_after_a_compound_statement() -> None:
    source = PythonSource(SOURCE.encode())
    branch = source.statements(source.function("f"))[0]
    assert "def f():\n    y = 0\n    if c:" in edited(source.before(branch, "y = 0"))
    assert "        k = 2\n    y = 0\n    return k\n" in edited(source.after(branch, "y = 0"))


def test_after_a_method_keeps_a_blank_line() -> None:
    source = PythonSource(SOURCE.encode())
    method = source.function("m", source.class_("K"))
    text = edited(source.after(method, "def o(self):\n    return 2", blank_before=True))
    assert "        return b(p)\n\n    def o(self):\n        return 2\n\n    def n(self):" in text


def test_after_the_last_statement_of_a_file_without_a_final_newline() -> None:
    source = PythonSource(b"x = 1")
    assert splice(b"x = 1", (source.after(source.statements(source.module)[0], "y = 2"),)) == b"x = 1\ny = 2\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_mark_are_kept(newline: str, mark: bytes) -> None:
    data = mark + "def f():\n    # ü comment 注释\n    s = 'é'\n    return s\n".replace("\n", newline).encode()
    edits = python_edits(lambda source: (source.at_body_start(source.function("f"), "a = 1\nb = 2"),))(data)
    result = splice(data, edits)
    expected = "def f():\n    # ü comment 注释\n    a = 1\n    b = 2\n\n    s = 'é'\n    return s\n".replace(
        "\n", newline
    )
    assert result == mark + expected.encode()


def test_splice_undoes_nothing_else() -> None:
    assert splice(b"abcdef", (Edit(4, b"e", b"EE"), Edit(1, b"", b"-"))) == b"a-bcdEEf"
    with pytest.raises(ValueError, match="byte 0"):
        splice(b"abc", (Edit(0, b"x", b"y"),))


@pytest.mark.parametrize(
    ("find", "line", "expected", "found"),
    [
        (lambda s: s.function("ff"), 19, "function ff in the module", "function f"),
        (lambda s: s.function("zebra"), 1, "function zebra in the module", "no function of that name"),
        (lambda s: s.class_("Kk"), 5, "class Kk in the module", "class K"),
        (lambda s: s.function("o", s.class_("K")), 5, "function o in K", "no function"),
        (lambda s: s.function("m", s.class_("K"), ["self", "p"]), 8, "function m(self, p)", "m(self, p, q)"),
        (
            lambda s: s.require_names(s.function("f"), ["k", "gone"]),
            19,
            "function f to use gone",
            "a body that does not",
        ),
        (lambda s: s.require_fields(s.class_("K"), ["x", "y"]), 5, "class K with y", "a class without"),
        (lambda s: s.require_import("d"), 1, "from ... import d", "no such import"),
        (lambda s: s.imported_names("other"), 1, "from other import ...", "0 of them"),
        (lambda s: s.assigned(s.function("f"), "k"), 23, "k = ... once in f", "2 of them"),
        (lambda s: s.assigned(s.module, "v"), 1, "v = ... once in the module", "0 of them"),
    ],
)
def test_a_missing_anchor_says_where_and_what(find, line, expected, found) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AnchorError) as caught:
        find(PythonSource(SOURCE.encode()))
    assert caught.value.line == line
    assert expected in caught.value.expected
    assert found in caught.value.found


@pytest.mark.parametrize(
    "data",
    [b"def f(:\n", "x = 'é'\n".encode("latin-1"), b"# coding: latin-1\nx = 1\n", b"\x00"],
    ids=["syntax", "not-utf8", "declared-latin1", "nul"],
)
def test_what_is_not_plain_python_is_refused(data: bytes) -> None:
    with pytest.raises(AnchorError):
        PythonSource(data)


def test_an_edit_that_breaks_the_file_is_refused() -> None:
    with pytest.raises(AnchorError, match="syntax"):
        python_edits(lambda source: (source.at_body_start(source.function("f"), "if:"),))(SOURCE.encode())


def test_two_statements_on_one_line_are_no_anchor_for_a_new_line() -> None:
    source = PythonSource(b"a = 1; b = 2\n")
    with pytest.raises(AnchorError, match="on a line of its own"):
        source.before(source.assigned(source.module, "b"), "c = 3")
