"""Finding and editing C++ by structure."""

from __future__ import annotations

import pytest

from porter.seams.cppsource import CppSource, cpp_edits
from porter.seams.model import AnchorError
from porter.seams.pysource import splice

SOURCE = """#pragma once
#include <vector>
#include "x.hpp" // why

namespace n {
inline int pick(int a, const std::vector<int> &b) {
#ifdef WITH_A
    return a;
#else
    return b[0];
#endif
}

struct S {
    T opts(D d) { return O(d).pinned(true); }
};

std::vector<int> K::make() const {
    return use(O(1).pinned(true));
}
} // namespace n
"""


def source(text: str = SOURCE) -> CppSource:
    return CppSource(text.encode())


def test_finds_functions_methods_and_qualified_definitions() -> None:
    cpp = source()
    assert cpp.line(cpp.function("pick", ["a", "b"])) == 6
    assert cpp.line(cpp.function("opts", ["d"])) == 15
    assert cpp.line(cpp.function("make", [])) == 18


def test_replaces_a_conditional_line() -> None:
    cpp = source()
    edit = cpp.replace_line(
        cpp.conditional(cpp.function("pick"), "WITH_A"), "#if defined(B)\n    return 1;\n#elif defined(WITH_A)"
    )
    text = splice(cpp.data, (edit,)).decode()
    assert "{\n#if defined(B)\n    return 1;\n#elif defined(WITH_A)\n    return a;\n#else\n" in text


def test_wraps_a_body() -> None:
    cpp = source()
    text = splice(cpp.data, cpp.wrap_body(cpp.body(cpp.function("make")), "#if X\n#else", "#endif")).decode()
    assert "const {\n#if X\n#else\n    return use(O(1).pinned(true));\n#endif\n}" in text


def test_replaces_one_argument_and_adds_an_include() -> None:
    cpp = source()
    edits = (
        cpp.replace(cpp.call_argument(cpp.function("make"), "pinned", "true"), "kPin"),
        cpp.line_after(cpp.include('"x.hpp"'), '#include "y.hpp"'),
    )
    text = splice(cpp.data, edits).decode()
    assert "use(O(1).pinned(kPin))" in text and "return O(d).pinned(true);" in text
    assert '#include "x.hpp" // why\n#include "y.hpp"\n\nnamespace' in text


def test_windows_line_ends_are_kept() -> None:
    cpp = source(SOURCE.replace("\n", "\r\n"))
    text = splice(cpp.data, (cpp.line_after(cpp.include("<vector>"), "#include <map>"),)).decode()
    assert text.replace("\r\n", "").find("\n") < 0
    assert "#include <vector>\r\n#include <map>\r\n" in text


@pytest.mark.parametrize(
    ("find", "line", "expected"),
    [
        (lambda c: c.function("picks"), 6, "function picks"),
        (lambda c: c.function("zzz"), 1, "function zzz"),
        (lambda c: c.function("pick", ["a"]), 6, "function pick(a)"),
        (lambda c: c.conditional(c.function("pick"), "WITH_B"), 6, "one #ifdef WITH_B"),
        (lambda c: c.call_argument(c.function("opts"), "pinned", "false"), 15, "one call .pinned(false) in opts"),
        (lambda c: c.mentions(c.function("pick"), ["b", "gone"]), 6, "pick to use gone"),
        (lambda c: c.include("<map>"), 2, "#include <map>"),
        (lambda c: c.wrap_body(c.body(c.function("opts")), "a", "b"), 15, "a body on several lines"),
    ],
)
def test_a_missing_anchor_says_where_and_what(find, line, expected) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AnchorError) as caught:
        find(source())
    assert caught.value.line == line
    assert expected in caught.value.expected


def test_an_edit_that_breaks_the_file_is_refused() -> None:
    with pytest.raises(AnchorError, match="parse errors"):
        cpp_edits(lambda cpp: (cpp.line_after(cpp.include("<vector>"), "int f( {"),))(SOURCE.encode())
