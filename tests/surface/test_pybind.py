"""Reading bindings from C++ text: one construct a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from porter.errors import SourceError, UnreadableFileError
from porter.surface.cpp_macros import expand, read_macros
from porter.surface.cpp_parse import outline, parse_pieces
from porter.surface.cpp_tokens import digest_tokens
from porter.surface.model import BindingFacts, Parameter, ParameterKind
from porter.surface.pybind import opaque, read_extension, unresolved

Read = Callable[..., tuple[BindingFacts, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read extension ``pkg._C`` from files given as keyword ``name__suffix=text``, or from one module body."""

    def run(body: str = "", before: str = "", **files: str) -> tuple[BindingFacts, ...]:
        if body or before:
            text = f"{before}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{body}\n}}\n"
            (tmp_path / "api.cpp").write_text(text)
        for name, content in files.items():
            path = tmp_path / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return read_extension(tmp_path, "pkg._C")

    return run


def shown(binding: BindingFacts) -> str:
    """A signature on one line; ``/`` and ``*`` as Python writes them."""
    if binding.signature is None:
        return "?"
    words: list[str] = []
    star = False
    parameters = binding.signature.parameters
    for index, one in enumerate(parameters):
        if one.kind is ParameterKind.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        star = star or one.kind is ParameterKind.VAR_POSITIONAL
        mark = {ParameterKind.VAR_POSITIONAL: "*", ParameterKind.VAR_KEYWORD: "**"}.get(one.kind, "")
        word = mark + one.name
        word += f": {one.annotation}" if one.annotation else ""
        word += f" = {one.default}" if one.default is not None else ""
        words.append(word)
        after = parameters[index + 1] if index + 1 < len(parameters) else None
        if one.kind is ParameterKind.POSITIONAL_ONLY and (after is None or after.kind is not one.kind):
            words.append("/")
    returns = f" -> {binding.signature.returns}" if binding.signature.returns is not None else ""
    return f"({', '.join(words)}){returns}"


def table(bindings: tuple[BindingFacts, ...]) -> dict[str, str]:
    return {f"{one.scope}.{one.name}" if one.scope else one.name: shown(one) for one in bindings}


FUNCTIONS = """
namespace py = pybind11;
int plain(int count, const std::string& label) { return count; }
std::optional<torch::Tensor> tensors(const torch::Tensor& x, const std::optional<at::Tensor>& y, std::vector<int64_t> sizes);
void unnamed(int, float) {}
void keywords(int lambda, int in) {}
py::object starred(int first, py::args rest, py::kwargs options) { return py::none(); }
py::object tailed(int first, py::args rest, int last) { return py::none(); }
int twice(int a) { return a; }
double twice(double a, double b) { return a; }
"""


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("&plain", "(count: int, label: str, /) -> int"),
        ("plain", "(count: int, label: str, /) -> int"),
        ('&plain, py::arg("n"), py::arg("text")', "(n: int, text: str) -> int"),
        ('&plain, "n"_a, "text"_a = "x"', '(n: int, text: str = "x") -> int'),
        ('&plain, "a docstring", py::arg("n"), py::arg("text")', "(n: int, text: str) -> int"),
        ('&plain, py::arg("n"), py::kw_only(), py::arg("text") = "x"', '(n: int, *, text: str = "x") -> int'),
        ('&plain, py::arg("n"), py::pos_only(), py::arg("text")', "(n: int, /, text: str) -> int"),
        (
            '&plain, py::arg("n").noconvert() = 3, py::arg("text").none(false) = ""',
            '(n: int = 3, text: str = "") -> int',
        ),
        ('&plain, py::arg("n"), py::arg_v("text", "y", "shown")', '(n: int, text: str = "y") -> int'),
        ("&plain, py::call_guard<py::gil_scoped_release>()", "(count: int, label: str, /) -> int"),
        ("torch::wrap_pybind_function(plain)", "(count: int, label: str, /) -> int"),
        ("&tensors", "(x: torch.Tensor, y: torch.Tensor | None, sizes: list[int], /) -> torch.Tensor | None"),
        ("&unnamed", "(arg0: int, arg1: float, /) -> None"),
        ("&keywords", "(lambda_: int, in_: int, /) -> None"),
        ("&starred", "(first: int, /, *args, **kwargs)"),
        ('&tailed, py::arg("first"), py::arg("last") = 1', "(first: int, *args, last: int = 1)"),
        ("py::overload_cast<int>(&twice)", "(a: int, /) -> int"),
        ("static_cast<double (*)(double, double)>(&twice)", "(a: float, b: float, /) -> float"),
        ("(double (*)(double, double)) & twice", "(a: float, b: float, /) -> float"),
        ('&twice, py::arg("a"), py::arg("b")', "(a: float, b: float) -> float"),
        ("[](int a, const std::string& b) { return a; }", "(a: int, b: str, /)"),
        ("[&](int a) -> bool { return true; }", "(a: int, /) -> bool"),
        ("[] {}", "()"),
        ('&nowhere, py::arg("a"), py::arg("b") = 2', "(a, b = 2)"),
    ],
)
def test_arguments_of_a_function(read: Read, definition: str, expected: str) -> None:
    found = read(f'm.def("f", {definition});', FUNCTIONS)
    assert table(found) == {"f": expected}


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("&nowhere", "no definition of `nowhere`"),
        ("&twice", "2 C++ definitions of `twice` take different arguments"),
        ("make_function(3)", "makes the function at run time"),
        ('&plain, py::arg("a") = 1, py::arg("b")', "`b` has no default and follows `a`"),
        ('&plain, py::arg("lambda"), py::arg("b")', "argument name `lambda` is not one Python can spell"),
    ],
)
def test_unknown_arguments_are_opaque(read: Read, definition: str, reason: str) -> None:
    (found,) = read(f'm.def("f", {definition});', FUNCTIONS)
    assert found.name == "f"
    assert found.signature is None
    assert reason in found.opaque
    assert opaque([found]) == (found,)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1", "1"),
        ("-1", "-1"),
        ("+2", "2"),
        ("1'000", "1000"),
        ("0x1F", "31"),
        ("0b101", "5"),
        ("010", "8"),
        ("10LL", "10"),
        ("7u", "7"),
        ("1.0f", "1.0"),
        ("1.f", "1.0"),
        ("1e-6", "1e-06"),
        ("true", "True"),
        ("!true", "False"),
        ("nullptr", "None"),
        ("std::nullopt", "None"),
        ("c10::nullopt", "None"),
        ("py::none()", "None"),
        ("torch::Tensor()", "None"),
        ("std::optional<int>()", "None"),
        ("std::make_optional(3)", "3"),
        ('"nk"', '"nk"'),
        ('"a" "b"', '"ab"'),
        ('R"(a\\b)"', '"a\\\\b"'),
        ('std::string("x")', '"x"'),
        ("'c'", '"c"'),
        ("std::make_tuple(1, 1, 128)", "(1, 1, 128)"),
        ("std::make_tuple(1)", "(1,)"),
        ("std::tuple<int, int>{1, 2}", "(1, 2)"),
        ("std::vector<int>{1, 2}", "[1, 2]"),
        ("std::vector<int>()", "[]"),
        ("std::vector<int>({3})", "[3]"),
        ("py::dict()", "{}"),
        ("static_cast<int>(4)", "4"),
        ("(int)4", "4"),
        ("int64_t(4)", "4"),
        ("1 << 20", "1048576"),
        ("64 * 1024 - 1", "65535"),
        ("torch::kInt", "torch.int32"),
        ("at::ScalarType::BFloat16", "torch.bfloat16"),
        ("std::numeric_limits<float>::infinity()", 'float("inf")'),
        ("-std::numeric_limits<float>::infinity()", '-float("inf")'),
        ("std::numeric_limits<int>::max()", "2147483647"),
        ("kWidth", "16"),
        ("inner::kDeep", '"deep"'),
    ],
)
def test_defaults(read: Read, written: str, expected: str) -> None:
    before = 'constexpr int kWidth = 16; namespace inner { static const std::string kDeep{"deep"}; } void f(int x) {}'
    (found,) = read(f'm.def("f", &f, py::arg("x") = {written});', before)
    assert found.signature is not None
    assert found.signature.parameters[0].default == expected
    assert not found.notes


@pytest.mark.parametrize("written", ["compute()", "7 / 2", "std::vector<int>(3, 1)", "mutable_value", "sizeof(int)"])
def test_default_that_python_cannot_spell_is_noted(read: Read, written: str) -> None:
    (found,) = read(f'm.def("f", &f, py::arg("x") = {written});', "int mutable_value = 3; void f(int x) {}")
    assert found.signature is not None
    assert found.signature.parameters[0].default == "..."
    assert found.notes == (f"default of x: {written}",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("const torch::Tensor&", "torch.Tensor"),
        ("at::Tensor", "torch.Tensor"),
        ("std::optional<at::Tensor>", "torch.Tensor | None"),
        ("const std::vector<std::vector<float>>&", "list[list[float]]"),
        ("std::tuple<int, bool, double>", "tuple[int, bool, float]"),
        ("std::pair<std::string, uint8_t>", "tuple[str, int]"),
        ("unsigned long long", "int"),
        ("size_t", "int"),
        ("const char*", "str"),
        ("std::unordered_map<std::string, int>", "dict[str, int]"),
        ("std::variant<int, std::tuple<int, int>>", "int | tuple[int, int]"),
        ("c10::ScalarType", "torch.dtype"),
        ("torch::Device", "torch.device"),
        ("py::bytes", "bytes"),
        ("py::dict", "dict"),
        ("aliased_t", "tuple[torch.Tensor, int]"),
        ("int*", None),
        ("std::function<int(int)>", None),
        ("Custom", None),
        ("std::vector<Custom>", None),
    ],
)
def test_annotations(read: Read, written: str, expected: str | None) -> None:
    before = f"using aliased_t = std::pair<torch::Tensor, int>; struct Custom {{}}; {written} f({written} x) {{}}"
    (found,) = read('m.def("f", &f);', before)
    assert found.signature is not None
    assert found.signature.parameters == (Parameter("x", ParameterKind.POSITIONAL_ONLY, None, expected),)
    assert found.signature.returns == expected


CLASSES = """
struct Base { virtual ~Base() = default; int shared(int step) { return step; } int number = 3;
              static int triple(int value) { return value; } };
struct Shape : Base {
    Shape(int width, std::optional<double> ratio);
    explicit Shape(const std::string& text) {}
    double area(double scale, int unit) const;
    int area(int only) const { return only; }
    std::string label() const; void rename(const std::string& to);
    std::pair<int, double> pair;
};
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('c.def("shared", &Shape::shared);', {"shared": "(step: int, /) -> int"}),
        ('c.def("triple", &Base::triple);', {"triple": "() -> int"}),
        ('c.def_static("triple", &Base::triple, py::arg("value"));', {"triple": "(value: int) -> int"}),
        (
            "c.def(py::init<int, std::optional<double>>());",
            {"__init__": "(width: int, ratio: float | None, /) -> None"},
        ),
        ("c.def(py::init<const std::string&>());", {"__init__": "(text: str, /) -> None"}),
        ("c.def(py::init<bool, bool, bool>());", {"__init__": "(arg0: bool, arg1: bool, arg2: bool, /) -> None"}),
        (
            'c.def(py::init([](int a) { return Shape(a, 1.0); }), py::arg("a") = 2);',
            {"__init__": "(a: int = 2) -> None"},
        ),
        (
            'c.def("area", static_cast<double (Shape::*)(double, int) const>(&Shape::area), py::arg("s"), py::arg("u"));',
            {"area": "(s: float, u: int) -> float"},
        ),
        ('c.def("area", py::overload_cast<int>(&Shape::area, py::const_));', {"area": "(only: int, /) -> int"}),
        ('c.def("go", [](Shape& self, int depth) -> int { return 1; });', {"go": "(depth: int, /) -> int"}),
        ('c.def("__enter__", [](Shape& self) -> Shape& { return self; });', {"__enter__": "()"}),
        ("c.def(py::self == py::self);", {"__eq__": "(arg0, /)"}),
        ("c.def(2 * py::self);", {"__rmul__": "(arg0, /)"}),
        ("c.def(-py::self);", {"__neg__": "()"}),
        ('c.def_property_readonly("label", &Shape::label);', {"label": "() -> str"}),
        ('c.def_readonly("pair", &Shape::pair);', {"pair": "() -> tuple[int, float]"}),
        ('c.def_readwrite("number", &Shape::number);', {"number": "() -> int"}),
        (
            "c.def(py::pickle([](const Shape& s) { return 1; }, [](int state) { return Shape(1, 2); }));",
            {"__getstate__": "()", "__setstate__": "(state: int, /) -> None"},
        ),
    ],
)
def test_members_of_a_class(read: Read, body: str, expected: dict[str, str]) -> None:
    found = read(f'py::class_<Shape> c(m, "Shape"); {body}', CLASSES)
    assert found[0].kind == "class"
    assert table(found[1:]) == {f"Shape.{name}": text for name, text in expected.items()}


@pytest.mark.parametrize(
    "body",
    [
        'py::class_<Shape, Base, std::shared_ptr<Shape>>(m, "Shape")',
        'pybind11::class_<Shape, std::unique_ptr<Shape>, Base>(m, "Shape", "doc", py::dynamic_attr())',
        'auto c = py::class_<Shape, Base>(m, "Shape"); c',
        'py::class_<Shape, Base> c(m, "Shape"); c',
        'py::class_<Shape, Base> c{m, "Shape"}; c',
        'using Binding = py::class_<Shape, Base>; Binding c(m, "Shape"); c',
    ],
)
def test_forms_of_a_class(read: Read, body: str) -> None:
    found = read(f'py::class_<Base>(m, "Base"); {body}.def_readwrite("number", &Shape::number);', CLASSES)
    assert [(one.scope, one.name, one.kind, one.bases, one.writable) for one in found] == [
        ("", "Base", "class", (), None),
        ("", "Shape", "class", ("Base",), None),
        ("Shape", "number", "property", (), True),
    ]


def test_property_with_a_setter_is_writable(read: Read) -> None:
    body = 'py::class_<Shape>(m, "Shape").def_property("label", &Shape::label, &Shape::rename);'
    assert read(body, CLASSES)[1].writable is True


def test_enum_has_its_members_and_what_pybind11_adds(read: Read) -> None:
    before = "enum class Mode { OFF, MASK = 4, COMPACT };"
    body = """
    py::enum_<Mode>(m, "Mode").value("OFF", Mode::OFF).value("COMPACT", Mode::COMPACT).export_values();
    m.def("f", [](Mode mode) {}, py::arg("mode") = Mode::COMPACT);
    """
    found = read(body, before)
    members = {one.name: one.value for one in found if one.scope == "Mode" and one.value is not None}
    assert members == {"OFF": "0", "COMPACT": "5"}
    assert {"__init__", "__int__", "name", "value", "__members__"} <= {one.name for one in found if one.scope == "Mode"}
    assert {one.name: one.alias_of for one in found if one.alias_of} == {"OFF": "Mode.OFF", "COMPACT": "Mode.COMPACT"}
    assert table(found)["f"] == "(mode = Mode.COMPACT)"


def test_submodules_and_aliases(read: Read) -> None:
    body = """
    auto sub = m.def_submodule("sub", "doc");
    sub.def("f", [](int a) { return a; }, py::arg("a"));
    sub.def_submodule("deep").def("g", [] {});
    m.attr("f") = sub.attr("f");
    m.attr("g") = m.attr("f");
    m.attr("h") = m.attr("missing");
    """
    found = {(one.scope, one.name): one for one in read(body)}
    assert [key for key, one in found.items() if one.kind == "module"] == [("", "sub"), ("sub", "deep")]
    assert ("sub.deep", "g") in found
    assert found["", "f"].signature == found["sub", "f"].signature
    assert found["", "f"].digest == found["sub", "f"].digest
    assert (found["", "g"].alias_of, found["", "g"].kind) == ("f", "function")
    assert "not bound" in found["", "h"].opaque


def test_constants(read: Read) -> None:
    before = 'constexpr int kWidth = 1 << 4; inline const std::string kTitle = "plain";'
    body = """
    m.attr("A") = 5; m.attr("B") = kWidth; m.attr("C") = py::str("x"); m.attr("D") = kTitle;
    m.attr("E") = py::make_tuple(1, "x"); m.attr("F") = py::cast(compute());
    """
    found = {one.name: one for one in read(body, before)}
    assert {name: one.value for name, one in found.items()} == {
        "A": "5",
        "B": "16",
        "C": '"x"',
        "D": '"plain"',
        "E": '(1, "x")',
        "F": None,
    }
    assert "computed in C++" in found["F"].opaque


def test_registration_is_followed_across_files(read: Read) -> None:
    found = read(
        api__cpp="""
        #include "more.hpp"
        void declared_only(pybind11::module_& m);
        PYBIND11_MODULE(_C, m) { outer::inner::register_apis(m); register_more(m); declared_only(m); }
        """,
        more__hpp="""
        namespace outer::inner {
        static void register_apis(pybind11::module_& m) { m.def("a", &helper); }
        }
        namespace other { static void register_apis(pybind11::module_& m) { m.def("wrong", [] {}); } }
        """,
        more__cpp="""
        namespace outer { namespace inner { int helper(int count) { return count; } } }
        void register_more(pybind11::module_& module) { module.def("b", [](bool flag) {}).def("c", [] {}); }
        """,
    )
    assert table(found[:3]) == {"a": "(count: int, /) -> int", "b": "(flag: bool, /)", "c": "()"}
    assert [one.path for one in found] == ["more.hpp", "more.cpp", "more.cpp", "api.cpp"]
    assert unresolved(found) == found[3:]
    assert "registers through `declared_only`, which is declared but not defined" in found[3].opaque


def test_third_party_registration_is_found_in_its_folder(read: Read) -> None:
    third = """
    namespace lib { template <typename T> inline void register_it(pybind11::module_& module, Lazy<T>& held) {
        pybind11::class_<Held<T>>(module, "Held", pybind11::module_local()); module.def("get", [&held]() { return held; });
    } }
    """
    found = read("lib::register_it(m, held);", third__party=third)
    assert [one.name for one in found] == ["*"]
    found = read("lib::register_it(m, held);", **{"third-party___lib___api__hpp": third})
    assert [(one.name, one.path) for one in found] == [
        ("Held", "third-party/lib/api.hpp"),
        ("get", "third-party/lib/api.hpp"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        "unknown_registration(m);",
        "registry.add(m);",
        "m.def(name_at_run_time(), [] {});",
        "m.attr(name_at_run_time()) = 1;",
        'm.attr("__dict__")["x"] = 1;',
        "py::class_<Foo>(m, name_at_run_time());",
        "m.surprise(1);",
        'py::class_<Foo>(m, "Foo").surprise(1);',
        "m.def(name, [] {});",
    ],
)
def test_what_cannot_be_followed_is_reported(read: Read, body: str) -> None:
    found = unresolved(read(body + ' m.def("last", [] {});'))
    assert len(found) == 1
    assert found[0].opaque
    assert found[0].line == 3


def test_helpers_macros_and_loops_are_expanded(read: Read) -> None:
    before = """
    struct Point { int x; int y; };
    #define FIELD(type, name) def_readwrite(#name, &type::name) \\
        .def("get_" #name, [](const type& self, int times) { return self.name; }, py::arg("times") = 2)
    template <typename T> void declare(py::module_& m, const std::string& suffix) {
        py::class_<Box<T>>(m, ("Box" + suffix).c_str()).def("get", [](Box<T>& self) { return 1; });
    }
    template <typename C, typename... Extra> void method(C& c, const char* name, Extra&&... extra) {
        c.def(name, [](Point& self, int depth) { return depth; }, std::forward<Extra>(extra)...);
    }
    """
    body = """
    py::class_<Point> point(m, "Point");
    point.FIELD(Point, x).FIELD(Point, y);
    method(point, "dive", py::arg("depth") = 3);
    declare<int>(m, "Int");
    for (const char* name : {"left", "right"}) { m.def(name, [](int step) {}); }
    auto local = [&](const char* name) { m.def(name, [] {}); };
    local("inner");
    [&] { m.def("immediate", [] {}); }();
    """
    found = read(body, before)
    assert table(found) == {
        "Point": "?",
        "Point.x": "() -> int",
        "Point.get_x": "(times: int = 2)",
        "Point.y": "() -> int",
        "Point.get_y": "(times: int = 2)",
        "Point.dive": "(depth: int = 3)",
        "BoxInt": "?",
        "BoxInt.get": "()",
        "left": "(step: int, /)",
        "right": "(step: int, /)",
        "inner": "()",
        "immediate": "()",
    }
    assert not unresolved(found)


def test_guards_are_noted(read: Read) -> None:
    body = """
    m.def("always", [] {});
#ifdef WITH_CUDA
    m.def("cuda", [] {});
#elif defined(WITH_NPU)
    m.def("npu", [] {});
#else
    if (has_it()) m.def("maybe", [] {});
#endif
    py::class_<Foo>(m, "Foo")
        .def("one", [](Foo& self) {})
#if LEVEL > 2
        .def("two", [](Foo& self) {})
#endif
        .def("three", [](Foo& self) {});
    """
    found = read(body)
    assert {one.name: one.guard for one in found} == {
        "always": "",
        "cuda": "WITH_CUDA",
        "npu": "defined(WITH_NPU)",
        "maybe": "if (has_it()) and not (defined(WITH_NPU))",
        "Foo": "",
        "one": "",
        "two": "LEVEL>2",
        "three": "",
    }


def test_include_guard_is_no_condition(read: Read) -> None:
    found = read(
        "register_it(m);",
        it__hpp='#ifndef IT_HPP\n#define IT_HPP\ninline void register_it(py::module_& m) { m.def("f", [] {}); }\n#endif\n',
    )
    assert [(one.name, one.guard) for one in found] == [("f", "")]


def test_one_name_on_two_platforms(read: Read) -> None:
    one = 'void init(py::module_& m) { m.def("f", [](int a) { return a; }); m.def("g", [](int a) {}); }'
    two = 'void init(py::module_& m) { m.def("f", [](int a) { return -a; }); m.def("g", [](int a, int b) {}); }'
    found = {one.name: one for one in read("init(m);", one__cpp=one, two__cpp=two)}
    assert shown(found["f"]) == "(a: int, /)"
    assert found["g"].opaque == "2 overloads: (a, /) and (a, b, /)"
    alone = {one.name: one for one in read("init(m);", one__cpp=one, two__cpp=one)}
    assert alone["f"].digest != found["f"].digest


def test_overloads_have_no_single_signature(read: Read) -> None:
    (found,) = read('m.def("f", [](int a) {}); m.def("f", [](int a, int b) {}, py::arg("a"), py::arg("b") = 1);')
    assert found.signature is None
    assert found.opaque == "2 overloads: (a, /) and (a, b=1)"


@pytest.mark.parametrize(
    ("changed", "moves"),
    [
        ("int f(int a) { return a + 1; }", False),
        ("// a word\nint f( int a )\n{\n  return a+1; /* more */\n}", False),
        ("int f(int a) { return a + 2; }", True),
        ("int f(int a) { return a - 1; }", True),
        ("int f(int b) { return b + 1; }", True),
        ("long f(int a) { return a + 1; }", True),
    ],
)
def test_digest_moves_with_the_definition_alone(read: Read, changed: str, moves: bool) -> None:
    (before,) = read('m.def("f", &f);', "int f(int a) { return a + 1; }")
    (after,) = read('m.def("f",   &f);', changed)
    assert before.digest and after.digest
    assert (before.digest != after.digest) is moves


def test_digest_sees_what_a_helpers_lambda_is_given(read: Read) -> None:
    helper = """
    template <typename G> void add(py::class_<Foo>& c, const char* name, G getter) {
        c.def_property_readonly(name, [getter](Foo& self) { return getter(self); });
    }
    """
    body = (
        'py::class_<Foo> c(m, "Foo"); add(c, "x", [](Foo& f) { return f.x; }); add(c, "y", [](Foo& f) { return f.y; });'
    )
    _, x, y = read(body, helper)
    assert x.digest != y.digest
    assert (x.line, y.line) == (body.count("\n") + 7, body.count("\n") + 7)


OPERATORS = """
TORCH_LIBRARY(pkg_ops, m) {
    m.def("gemm(Tensor a, Tensor(a!) d, int[2] sizes, Tensor? c=None, *, float alpha=1.5, str mode=\\"nk\\", ScalarType dtype=None) -> Tensor");
    m.def("pkg_ops::swap(Tensor(a!)[] xs) -> (Tensor, Tensor?)");
    m.def("typed", &typed_op);
    m.impl("gemm", torch::kCUDA, &gemm_cuda);
}
TORCH_LIBRARY_IMPL(pkg_ops, CPU, m) { m.impl("swap", TORCH_FN(swap_cpu)); }
int64_t typed_op(at::Tensor x, int64_t n) { return n; }
at::Tensor gemm_cuda(at::Tensor a) { return a; }
void swap_cpu(std::vector<at::Tensor> xs) {}
"""


@pytest.mark.parametrize("macro", ["TORCH_LIBRARY", "STABLE_TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT"])
def test_torch_library(read: Read, macro: str) -> None:
    found = read(ops__cpp=OPERATORS.replace("TORCH_LIBRARY(pkg_ops", f"{macro}(pkg_ops"))
    assert table(found) == {
        "torch.ops.pkg_ops.gemm": (
            "(a: torch.Tensor, d: torch.Tensor, sizes: list[int], c: torch.Tensor | None = None, *, alpha: float = 1.5,"
            ' mode: str = "nk", dtype: torch.dtype = None) -> torch.Tensor'
        ),
        "torch.ops.pkg_ops.swap": "(xs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]",
        "torch.ops.pkg_ops.typed": "(x: torch.Tensor, n: int, /) -> int",
    }
    assert [(doc.name, doc.flags) for one in found for doc in one.docs] == [("d", ("in-place",)), ("xs", ("in-place",))]
    assert all(one.digest for one in found)


@pytest.mark.parametrize("name", ["_C", "TORCH_EXTENSION_NAME", "MODULE_NAME", "NAMED"])
def test_names_a_module_macro_goes_by(read: Read, name: str) -> None:
    found = read(
        api__cpp=f'#define NAMED _C\nPYBIND11_MODULE({name}, module, py::mod_gil_not_used()) {{ module.def("f", [] {{}}); }}'
    )
    assert [one.name for one in found] == ["f"]


def test_another_modules_macro_is_left_alone(read: Read) -> None:
    found = read(
        'm.def("mine", [] {});',
        other__cpp='PYBIND11_MODULE(other, m) { m.def("others", [] {}); }',
        examples___demo__cpp='PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("demo", [] {}); }',
    )
    assert [one.name for one in found] == ["mine"]


def test_sources_choose_among_modules(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.cpp").write_text(
            f'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{name}", [] {{}}); m.def("both", [] {{}}); }}'
        )
    both = read_extension(tmp_path, "pkg._C")
    assert {one.name: one.guard for one in both} == {"one": "module in one.cpp", "both": "", "two": "module in two.cpp"}
    chosen = read_extension(tmp_path, "pkg._C", sources=[Path("two.cpp")])
    assert [one.name for one in chosen] == ["two", "both"]
    with pytest.raises(SourceError, match="no such C\\+\\+ source"):
        read_extension(tmp_path, "pkg._C", sources=[Path("three.cpp")])


def test_extension_without_sources_is_wholly_opaque(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "_C.cpython-312-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    (found,) = read_extension(tmp_path, "pkg._C")
    assert (found.name, found.path) == ("*", "pkg/_C.cpython-312-x86_64-linux-gnu.so")
    assert "declare its names in overrides/" in found.opaque


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not a folder"):
        read_extension(tmp_path / "nowhere", "pkg._C")


@pytest.mark.parametrize("cut", [60, 120, 200, 260, 320])
def test_broken_source_is_read_as_far_as_it_goes(read: Read, cut: int) -> None:
    text = (
        FUNCTIONS
        + 'PYBIND11_MODULE(_C, m) {\n m.def("f", &plain, py::arg("a"), py::arg("b"));\n m.def("g", [] {}); }\n'
    )
    for index in (len(text) - cut, len(text) - cut // 2):
        read(api__cpp=text[:index])


def test_result_does_not_depend_on_the_order_of_files(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    files = {f"f{index}__cpp": f'void init(py::module_& m) {{ m.def("n{index}", [] {{}}); }}' for index in range(4)}
    first = read("init(m);", **files)
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((folder, names, files[::-1]) for folder, names, files in walk(top)))
    assert read("init(m);") == first


@pytest.mark.parametrize(
    "odd",
    [
        'STATIC_ASSERT(LIMIT == 8, "a message");',
        "WARNINGS_OFF",
        "NOT_COPYABLE(Thing)",
        "int call() { OVERRIDE(void, Thing, call, ); return 1; }",
        "void launch() { kernel<<<grid, 32, 0, stream>>>(1, 2); }",
        "__device__ __forceinline__ int device_only() { return 1; }",
        "int legacy() const throw() { return 1; }",
    ],
)
def test_a_construct_the_grammar_does_not_know_costs_nothing_else(read: Read, odd: str) -> None:
    before = f"""
    namespace outer::inner {{
    class API_EXPORT Thing : public Other {{
    public:
        {odd}
        int size(int unit) const {{ return unit; }}
    }};
    static void register_it(py::module_& m) {{ py::class_<Thing>(m, "Thing").def("size", &Thing::size); }}
    }}
    """
    assert table(read("outer::inner::register_it(m);", before))["Thing.size"] == "(unit: int, /) -> int"


def test_a_broken_function_costs_nothing_else(read: Read) -> None:
    before = "int broken() { return ((((; }\nnamespace n { int fine(int a) { return a; } }\n"
    assert table(read('m.def("fine", &n::fine);', before)) == {"fine": "(a: int, /) -> int"}


def test_module_macro_inside_a_namespace(read: Read) -> None:
    text = """
    namespace a { int f(int in_a) { return 1; } }
    namespace b { namespace c { int f(int in_c) { return 1; } }
    PYBIND11_MODULE(_C, m) { using namespace b::c; m.def("f", &f); struct Local { int go(int x); };
        py::classh<Local>(m, "Local").def("go", &Local::go); m.attr_with_type_hint<int>("N") = 3; }
    }
    """
    found = read(api__cpp=text)
    assert table(found) == {
        "f": "(in_c: int, /) -> int",
        "Local": "?",
        "Local.go": "(x: int, /) -> int",
        "N": "?",
    }
    assert found[-1].value == "3"


def test_definition_in_the_binding_files_folder_is_meant(read: Read) -> None:
    found = read(
        one___api__cpp='void f(int a);\nPYBIND11_MODULE(_C, m) { m.def("f", &f); }',
        one___f__cu="void f(int a) { kernel<<<1, 2>>>(a); }",
        two___f__cu="void f(int a, int b) {}",
    )
    assert table(found) == {"f": "(a: int, /) -> None"}


def test_function_defined_elsewhere_is_found_through_its_declaration(read: Read) -> None:
    found = read('m.def("f", &lib::f);', "namespace lib { int f(int a); }", f__cc="int lib::f(int a) { return a; }")
    assert table(found) == {"f": "(a: int, /) -> int"}
    assert found[0].digest


def test_inherited_member_is_found_in_the_base(read: Read) -> None:
    before = """
    template <typename T> struct Root { int deep(int level) { return level; } int field = 1; };
    struct Middle : public Root<int> {};
    using Alias = Middle;
    struct Leaf : Alias {};
    """
    found = read('py::class_<Leaf>(m, "Leaf").def("deep", &Leaf::deep).def_readonly("field", &Leaf::field);', before)
    assert table(found)["Leaf.deep"] == "(level: int, /) -> int"
    assert table(found)["Leaf.field"] == "() -> int"


def test_deep_nesting_is_an_error_with_the_file(tmp_path: Path) -> None:
    depth = 20_000
    text = f'PYBIND11_MODULE(_C, m) {{ m.attr("x") = {"(" * depth}1{")" * depth}; }}'
    (tmp_path / "api.cpp").write_text(text)
    with pytest.raises(UnreadableFileError, match=r"api\.cpp.*nested too deeply"):
        read_extension(tmp_path, "pkg._C")


def test_unreadable_file_is_an_error_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api.cpp").write_text("PYBIND11_MODULE(_C, m) {}")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UnreadableFileError, match=r"api\.cpp: cannot be read: Permission denied"):
        read_extension(tmp_path, "pkg._C")


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (b"a + b", b"a+b /* note */ // more", True),
        (b"vector<vector<int>> x", b"vector<vector<int> > x", True),
        (b"a - -b", b"a--b", False),
        (b'"a b"', b'"ab"', False),
        (b"'//'", b"'//' // x", True),
        (b'R"(a /* b */)"', b'R"(a)"', False),
        (b"int x = 1;", b"intx=1;", False),
        (b"a \\\n b", b"a b", True),
    ],
)
def test_token_digest(one: bytes, two: bytes, same: bool) -> None:
    assert (digest_tokens([one]) == digest_tokens([two])) is same


@given(st.text(max_size=200))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    outline(data)
    expand(b"#define M(x) .def(#x, &x)\n" + data, read_macros(b"#define M(x) .def(#x, &x)\n"), {})
    assert len(digest_tokens([data])) == 32


@given(
    st.lists(
        st.sampled_from(
            ["{", "}", "(", ")", "namespace n ", "class X ", ";", "f", "M(a)", "\n#if A\n", "\n#endif\n", '"']
        ),
        max_size=40,
    )
)
def test_any_brackets_are_read_without_a_crash(parts: list[str]) -> None:
    data = "".join(parts).encode()
    for _, start, end in outline(data):
        assert 0 <= start < end <= len(data)
    assert parse_pieces(data)
