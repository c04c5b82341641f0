"""Bindings read from C++ against independent readings: compiled modules, upstream's stubs, upstream's stub generator."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from porter.surface.cpp_tokens import tokens
from porter.surface.model import BindingFacts, ParameterKind, Signature
from porter.surface.pybind import opaque, read_extension, unresolved
from porter.surface.pyi import read_stub

SourceRoot = Callable[[str], Path]
pytestmark = pytest.mark.truth


# -- a compiled module -------------------------------------------------------------------------------------------

SAMPLE = {
    "sample.hpp": r"""
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/operators.h>
#include <limits>
namespace py = pybind11;
namespace sample::tools {
constexpr int kWidth = 1 << 4;
inline const std::string kTitle = "plain \"text\"";
enum class Mode { OFF, MASK = 4, COMPACT };
enum Flag { A = 1, B, C = 8 };
using Pair = std::pair<int, double>;
struct Inner { int first = 1; };
struct Base { virtual ~Base() = default; int shared(int step) { return step; } int number = 3;
              static int twice(int value) { return value * 2; } };
template <typename T> struct Box { T held; explicit Box(T start) : held(start) {} T get() const { return held; } };
struct Shape : Base {
    Shape(int width, std::optional<double> ratio, std::vector<std::string> labels);
    Shape(const std::string& text, bool strict) {}
    double area(double scale, int unit) const;
    int area(int only) const { return only; }
    static std::shared_ptr<Shape> make(int width) { return nullptr; }
    bool operator==(const Shape& other) const { return this == &other; }
    std::string name() const { return "x"; }
    void rename(const std::string& to) {}
    Pair pair{1, 2.0};
};
double combine(const Pair& left, const std::optional<std::vector<int>>& right, std::tuple<int, int, int> recipe,
               float scale, const std::string& mode, bool flag, std::shared_ptr<Shape> shape);
int overloaded(int a);
double overloaded(double a, double b);
inline int unnamed(int, int second) { return second; }
inline int keywords(int lambda, int from) { return lambda; }
inline py::object starred(int first, py::args rest, py::kwargs options) { return py::none(); }
inline py::object after_star(int first, py::args rest, int tail) { return py::none(); }
template <typename T> T generic(T value) { return value; }
void register_more(py::module_& m);
}
""",
    "main.cpp": r"""
#include "sample.hpp"
namespace sample::tools {
Shape::Shape(int width, std::optional<double> ratio, std::vector<std::string> labels) {}
double Shape::area(double scale, int unit) const { return scale * unit; }
double combine(const Pair& left, const std::optional<std::vector<int>>& right, std::tuple<int, int, int> recipe,
               float scale, const std::string& mode, bool flag, std::shared_ptr<Shape> shape) { return 0; }
int overloaded(int a) { return a; }
double overloaded(double a, double b) { return a; }
#define FIELD(type, name) def_readwrite(#name, &type::name) \
    .def("get_" #name, [](const type& self, int times) { return times; }, py::arg("times") = 2)
template <typename T> void declare_box(py::module_& m, const std::string& suffix) {
    py::class_<Box<T>>(m, ("Box" + suffix).c_str()).def(py::init<T>(), py::arg("start")).def("get", &Box<T>::get);
}
template <typename Class, typename... Extra> void bind_method(Class& cls, const char* name, Extra&&... extra) {
    cls.def(name, [](Shape& self, int depth) { return depth; }, std::forward<Extra>(extra)...);
}
void register_more(py::module_& m) {
    using ShapeBinding = py::class_<Shape, Base, std::shared_ptr<Shape>>;
    py::class_<Base, std::shared_ptr<Base>> base(m, "Base");
    base.def("shared", &Base::shared).FIELD(Base, number).def_static("twice", &Base::twice, py::arg("value"));
    ShapeBinding cls(m, "Shape", "docs");
    cls.def(py::init<int, std::optional<double>, std::vector<std::string>>(), py::arg("width"),
            py::arg("ratio") = py::none(), py::arg("labels") = std::vector<std::string>{"a", "b"})
        .def("area", static_cast<double (Shape::*)(double, int) const>(&Shape::area), py::arg("scale"), py::kw_only(),
             py::arg("unit") = -1)
        .def("area_int", py::overload_cast<int>(&Shape::area, py::const_), py::arg("only"), py::pos_only())
        .def("shared_again", &Shape::shared)
        .def_static("make", &Shape::make, "doc", py::arg("width") = kWidth)
        .def("__enter__", [](Shape& self) -> Shape& { return self; })
        .def("__exit__", [](Shape& self, py::args args) {})
        .def(py::self == py::self)
#ifdef SAMPLE_EXTRA
        .def("never", [](Shape& self) {})
#endif
        .def_property("label", &Shape::name, &Shape::rename)
        .def_property_readonly("size", [](const Shape& self) -> int { return 1; })
        .def_readonly("pair", &Shape::pair)
        .def_readwrite("number_again", &Shape::number);
    bind_method(cls, "dive", py::arg("depth") = 3);
    py::class_<Inner>(cls, "Inner").def("first", [](const Inner& self) { return self.first; });
    m.def("combine", &combine, py::arg("left"), py::arg("right") = std::nullopt,
          py::arg("recipe") = std::make_tuple(1, 1, 128), py::arg("scale") = 0.5f, py::arg("mode") = "nk",
          py::arg("flag") = true, py::arg("shape") = nullptr);
    m.def("overloaded", py::overload_cast<int>(&overloaded));
    m.def("overloaded", py::overload_cast<double, double>(&overloaded), py::arg("a"), py::arg("b"));
    m.def("second", (double (*)(double, double)) & overloaded);
    m.def("unnamed", &unnamed).def("keywords", &keywords).def("starred", &starred);
    m.def("after_star", &after_star, py::arg("first"), py::arg("tail") = 1);
    m.def("generic", &generic<int>, py::arg("value").noconvert() = 0x10);
    for (const char* name : {"left", "right"}) {
        m.def(name, [](int step) { return step; }, py::arg("step") = 1'000);
    }
    auto local = [](const std::vector<int>& items, const std::string& sep) { return sep; };
    m.def("local", local, py::arg("items") = std::vector<int>{}, py::arg("sep") = ", ");
    m.def("limits", [](double low, int64_t high, int64_t negative) { return low; },
          py::arg("low") = -std::numeric_limits<double>::infinity(),
          py::arg("high") = std::numeric_limits<int32_t>::max(), py::arg("negative") = -(1 << 3));
    declare_box<int>(m, "Int");
    declare_box<double>(m, std::string("Double"));
}
}
#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME sample
#endif
using namespace sample::tools;
void register_enums(py::module_ m) {
    py::enum_<Mode>(m, "Mode").value("OFF", Mode::OFF).value("MASK", Mode::MASK).value("COMPACT", Mode::COMPACT);
    py::enum_<Flag>(m, "Flag", py::arithmetic()).value("A", Flag::A).value("B", B).value("C", Flag::C).export_values();
    m.def("with_mode", [](Mode mode, Mode other) { return mode; }, py::arg("mode") = Mode::MASK,
          py::arg_v("other", Mode::OFF, "Mode.OFF"));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "sample";
    auto sub = m.def_submodule("tools", "docs");
    register_more(sub);
    register_enums(sub.def_submodule("enums"));
#ifdef SAMPLE_EXTRA
    m.def("extra", []() {});
#else
    m.def("plain", []() {});
#endif
    m.attr("combine") = sub.attr("combine");
    m.attr("WIDTH") = kWidth;
    m.attr("TITLE") = kTitle;
    m.attr("LIMITS") = py::make_tuple(1, 2.5, "x");
    m.attr("Shape") = sub.attr("Shape");
    py::register_exception<std::runtime_error>(m, "SampleError", PyExc_ValueError);
    [&] { m.def("immediate", [](int a) { return a; }, py::arg("a")); }();
}
""",
}

# Prints what the compiled module holds: per dotted name its kind and what Python can say of it.
DUMP = r"""
import inspect, json, sys
sys.path.insert(0, sys.argv[1])
import sample
out = {}
def visit(owner, path):
    for name, value in vars(owner).items():
        if name in ("__doc__", "__module__", "__name__", "__package__", "__loader__", "__spec__", "__file__",
                    "__dict__", "__weakref__", "__entries", "_pybind11_conduit_v1_", "__qualname__") or value is None:
            continue
        full = f"{path}.{name}" if path else name
        if inspect.ismodule(value):
            out[full] = {"kind": "module"}
            visit(value, full)
        elif isinstance(value, type):
            out[full] = {"kind": "class", "bases": [base.__name__ for base in value.__bases__]}
            if f"{value.__module__}.{value.__qualname__}" == f"sample.{full}":
                visit(value, full)
        elif name == "__members__":
            out[full] = {"kind": "constant", "value": None}
        elif name == "__init__" and type(value).__name__ == "wrapper_descriptor":
            continue  # what every class has: it says that there is no constructor
        elif isinstance(value, property):
            out[full] = {"kind": "property", "writable": value.fset is not None}
        elif isinstance(value, (staticmethod, classmethod)) or callable(value) and not hasattr(value, "__members__"):
            static = isinstance(value, staticmethod)
            call = value.__func__ if static else value
            if hasattr(type(value), "__int__"):
                out[full] = {"kind": "constant", "value": int(value)}
                continue
            kind = "staticmethod" if static else "method" if isinstance(owner, type) else "function"
            out[full] = {"kind": kind, "doc": (call.__doc__ or "").strip()}
        else:
            shown = int(value) if hasattr(value, "__members__") else value
            out[full] = {"kind": "constant", "value": shown if not isinstance(shown, dict) else None}
visit(sample, "")
json.dump(out, sys.stdout)
"""


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The sample's folder and what the module built from it holds; built once for given sources and headers."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler to build the module that is compared with")
    torch = pytest.importorskip("torch", reason="torch ships the pybind11 headers")
    headers = Path(torch.__file__).parent / "include"
    python = sysconfig.get_paths()["include"]
    if not (Path(python) / "Python.h").exists():
        pytest.skip("needs Python's headers to build the module that is compared with")
    assert request.config.cache is not None
    key = hashlib.sha256(json.dumps([SAMPLE, torch.__version__, sys.version]).encode()).hexdigest()[:16]
    folder = Path(request.config.cache.mkdir(f"pybind_sample_{key}"))
    sources = folder / "sources"
    sources.mkdir(exist_ok=True)
    for name, text in SAMPLE.items():
        (sources / name).write_text(text)
    built = folder / f"sample{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not built.exists():
        partial = folder / "partial.so"
        command = [
            compiler,
            "-std=c++20",
            "-O0",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            f"-I{headers}",
            f"-I{python}",
        ]
        subprocess.run([*command, str(sources / "main.cpp"), "-o", str(partial)], check=True, capture_output=True)
        partial.replace(built)
    dumped = subprocess.run([sys.executable, "-c", DUMP, str(folder)], check=True, capture_output=True, text=True)
    return sources, json.loads(dumped.stdout)


def _split(text: str) -> Iterator[str]:
    depth = 0
    current = ""
    quote = ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if char == "," and depth == 0 and not quote:
            yield current.strip()
            current = ""
        else:
            current += char
    if current.strip():
        yield current.strip()


def runtime_arguments(doc: str, *, method: bool) -> list[tuple[str, str, object]] | None:
    """(name, kind, default) of each argument by the docstring pybind11 writes; None where overloads differ in that."""
    line = doc.splitlines()[0]
    if "Overloaded function." in doc:
        overloads = [runtime_arguments(one, method=method) for one in re.findall(r"^\d+\. (.*)$", doc, re.MULTILINE)]
        return overloads[0] if all(one == overloads[0] for one in overloads) else None
    inside = line[line.index("(") + 1 : line.rindex(") ->")]
    found: list[tuple[str, str, object]] = []
    kind = "positional"
    parts = list(_split(inside))
    for index, part in enumerate(parts[1:] if method else parts):
        if part == "/":
            found = [(name, "positional-only", default) for name, _, default in found]
        elif part == "*":
            kind = "keyword-only"
        elif part.startswith("**"):
            found.append((part[2:], "var-keyword", None))
        elif part.startswith("*"):
            found.append((part[1:], "var-positional", None))
            kind = "keyword-only"
        else:
            name, _, rest = part.partition(":")
            _, equals, default = rest.rpartition(" = ")
            value = default if equals else None
            nameless = name == f"arg{index}"
            found.append(("_" if nameless else name, "positional-only" if nameless else kind, value))
    return found


def read_arguments(signature: Signature) -> list[tuple[str, str, object]]:
    return [
        (
            "_" if one.kind is ParameterKind.POSITIONAL_ONLY and one.default is None else one.name,
            one.kind.value,
            one.default,
        )
        for one in signature.parameters
    ]


def _evaluated(value: object) -> object:
    """A default as a value where its text is Python, so that spelling does not count."""
    if not isinstance(value, str):
        return value
    text = re.sub(r"<(\w+\.\w+): \d+>", r"\1", value)
    text = text.replace('-float("inf")', "-inf")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def by_path(bindings: tuple[BindingFacts, ...]) -> dict[str, BindingFacts]:
    return {f"{one.scope}.{one.name}" if one.scope else one.name: one for one in bindings}


def test_compiled_module_holds_the_names_read(compiled: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    sources, truth = compiled
    found = by_path(read_extension(sources, "sample"))
    guarded = {name for name, one in found.items() if one.guard == "SAMPLE_EXTRA"}
    assert guarded == {"extra", "tools.Shape.never"}
    assert not unresolved(tuple(found.values()))
    assert found.keys() - guarded == truth.keys()
    assert {name: one.kind for name, one in found.items() if name not in guarded} == {
        name: one["kind"] for name, one in truth.items()
    }


def test_compiled_module_takes_the_arguments_read(compiled: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    sources, truth = compiled
    found = by_path(read_extension(sources, "sample"))
    compared = 0
    for name, fact in truth.items():
        if "doc" not in fact:
            continue
        expected = runtime_arguments(fact["doc"], method=fact["kind"] == "method")
        binding = found[name]
        if expected is None:
            assert binding.signature is None, name
            assert "overloads" in binding.opaque
            continue
        assert binding.signature is not None, (name, binding.opaque)
        given = [(word, kind, _evaluated(default)) for word, kind, default in read_arguments(binding.signature)]
        wanted = [
            ("_" if kind == "positional-only" and default is None else word, kind, _evaluated(default))
            for word, kind, default in expected
        ]
        if name.startswith("tools.enums.") and name.count(".") == 3:
            # Versions of pybind11 differ in whether its own methods of an enum take their argument by name.
            assert len(given) == len(wanted), name
        else:
            assert given == wanted, name
        compared += 1
    assert compared >= 60


def test_compiled_module_has_the_values_read(compiled: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    sources, truth = compiled
    found = by_path(read_extension(sources, "sample"))
    constants = {
        name: fact["value"] for name, fact in truth.items() if fact["kind"] == "constant" and fact["value"] is not None
    }
    assert len(constants) == 12
    for name, value in constants.items():
        text = found[name].value
        assert text is not None, name
        read = ast.literal_eval(text)
        assert (list(read) if isinstance(read, tuple) else read) == value, name
    for name, fact in truth.items():
        if fact["kind"] == "property":
            assert found[name].writable is fact["writable"], name
        if fact["kind"] == "class":
            bases = [base for base in fact["bases"] if base != "pybind11_object"]
            assert list(found[name].bases) == bases, name


# -- upstream's own stubs ----------------------------------------------------------------------------------------


def test_deepinfer_stub_agrees_with_its_sources(source_root: SourceRoot) -> None:
    root = source_root("deepinfer")
    read, stub = by_path(read_extension(root, "deepinfer._C")), by_path(read_stub(root, "deepinfer._C"))
    assert not unresolved(tuple(read.values()))
    assert not opaque(tuple(read.values()))
    assert len(stub) == 277
    assert read.keys() == stub.keys()
    for name, binding in read.items():
        assert (binding.kind, binding.writable) == (stub[name].kind, stub[name].writable), name
        if binding.signature is None:
            continue
        declared = stub[name].signature
        assert declared is not None, name
        given = [(word, kind, _evaluated(default)) for word, kind, default in read_arguments(binding.signature)]
        wanted = [(word, kind, _evaluated(default)) for word, kind, default in read_arguments(declared)]
        # The stub shows a default that is an object as an ellipsis.
        given = [
            (word, kind, other if other is Ellipsis else default)
            for (word, kind, default), (_, _, other) in zip(given, wanted, strict=True)
        ]
        assert given == wanted, name


def test_deepinfer_stub_agrees_with_the_types_read(source_root: SourceRoot) -> None:
    """Where both know a type they agree, but for what an argument accepts beyond it."""
    root = source_root("deepinfer")
    read, stub = by_path(read_extension(root, "deepinfer._C")), by_path(read_stub(root, "deepinfer._C"))
    compared = 0
    for name, binding in read.items():
        declared = stub[name].signature
        if binding.signature is None or declared is None:
            continue
        pairs = [(binding.signature.returns, declared.returns)]
        pairs += [
            (one.annotation, other.annotation)
            for one, other in zip(binding.signature.parameters, declared.parameters, strict=True)
        ]
        for given, wanted in pairs:
            if given is None or wanted is None:
                continue
            accepted = wanted.replace("collections.abc.Sequence", "list")
            accepted = accepted.replace("typing.SupportsInt | typing.SupportsIndex", "int")
            accepted = accepted.replace("typing.SupportsFloat | typing.SupportsIndex", "float")
            assert given == accepted, name
            compared += 1
    assert compared >= 250


# -- upstream's stub generator -----------------------------------------------------------------------------------


def test_deep_gemm_generator_agrees(source_root: SourceRoot, tmp_path: Path) -> None:
    """DeepGEMM's own script reads the same bindings with regular expressions: an independent reading of the text."""
    root = source_root("deep_gemm")
    script = root / "scripts" / "generate_pyi.py"
    code = f"import runpy; runpy.run_path({str(script)!r})['generate_pyi_file']('_C', {str(root / 'csrc')!r}, {str(tmp_path)!r})"
    subprocess.run([sys.executable, "-B", "-c", code], check=True, capture_output=True)
    tree = ast.parse((tmp_path / "_C.pyi").read_text())
    found = {
        one.name: one for one in read_extension(root, "deep_gemm._C") if one.kind == "function" and one.scope == ""
    }
    # The script takes C++ names, which py::arg replaces in these places.
    renamed = {"epilogue": "epilogue_class", "kv_cache": "fused_kv_cache"}
    compared = lambdas = 0
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        assert node.name in found
        signature = found[node.name].signature
        assert signature is not None
        if node.args.vararg is not None:
            lambdas += 1
            continue
        wanted = [one.arg for one in node.args.args]
        given = [one.name for one in signature.parameters]
        assert [word if word in wanted else renamed.get(word, word) for word in given] == wanted, node.name
        defaults = [None] * (len(wanted) - len(node.args.defaults)) + [ast.unparse(one) for one in node.args.defaults]
        assert [_evaluated(one.default) for one in signature.parameters] == [
            _evaluated(one) for one in defaults
        ], node.name
        compared += 1
    assert (compared, lambdas) == (48, 14)


# -- every name that Python takes from an extension --------------------------------------------------------------


def names_taken(package: Path, extension: str) -> set[str]:
    """Names that a package's modules import from an extension or read off it, with their dotted scope."""
    taken: set[str] = set()
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        bound = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                before, dot, after = ("." * node.level + node.module).rpartition(extension)
                if dot and (not before or before.endswith(".")) and (not after or after.startswith(".")):
                    taken.update(f"{after[1:]}.{alias.name}".lstrip(".") for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                bound.update(alias.asname or alias.name for alias in node.names if alias.name == extension)
            if isinstance(node, ast.Import):
                bound.update(
                    alias.asname for alias in node.names if alias.asname and alias.name.endswith(f".{extension}")
                )
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
                taken.add(node.attr)
    return {name for name in taken if not name.startswith("__")}


@pytest.mark.parametrize(
    ("source", "package", "extension", "count"),
    [
        ("deep_gemm", "deep_gemm", "_C", 82),
        ("deep_ep", "deep_ep", "_C", 18),
        ("flash_mla", "flash_mla", "cuda", 8),
        ("deepinfer", "deepinfer", "_C", 39),
    ],
)
def test_every_name_python_takes_is_found(
    source_root: SourceRoot, source: str, package: str, extension: str, count: int
) -> None:
    root = source_root(source)
    taken = names_taken(root / package, extension)
    assert len(taken) == count, sorted(taken)
    bindings = read_extension(root, f"{package}.{extension}")
    assert taken <= by_path(bindings).keys()
    assert not unresolved(bindings)
    assert not opaque(bindings)


def test_methods_of_deep_ep_runtime_objects_are_found(source_root: SourceRoot) -> None:
    """The Python classes call methods of C++ objects they hold as ``self.runtime``."""
    root = source_root("deep_ep")
    called = set[str]()
    for path in sorted((root / "deep_ep").rglob("*.py")):
        called.update(re.findall(r"\bself\.runtime\.(\w+)", path.read_text()))
    assert len(called) >= 10
    methods = {one.name for one in read_extension(root, "deep_ep._C") if one.scope}
    assert called <= methods


@pytest.mark.parametrize(
    ("source", "module", "total"),
    [
        ("deep_gemm", "deep_gemm._C", 94),
        ("deep_ep", "deep_ep._C", 58),
        ("flash_mla", "flash_mla.cuda", 8),
        ("deepinfer", "deepinfer._C", 277),
    ],
)
def test_all_arguments_are_known(source_root: SourceRoot, source: str, module: str, total: int) -> None:
    bindings = read_extension(source_root(source), module)
    assert len(bindings) == total
    without = {one.kind for one in bindings if one.signature is None}
    assert without <= {"class", "module", "constant"}


def test_deep_select_ships_no_source_and_says_so(source_root: SourceRoot) -> None:
    (found,) = read_extension(source_root("deep_select"), "deep_select.deep_select_cuda")
    assert unresolved([found]) == opaque([found]) == (found,)
    # Binaries are left out when an archive is unpacked.
    assert found.path == "" and "none of 0 C++ files binds it" in found.opaque


def test_no_definition_goes_without_a_digest(source_root: SourceRoot) -> None:
    """What has none: a submodule, a constructor that C++ writes itself, a pure virtual function, what pybind11 adds."""
    for source, module in (("deep_gemm", "deep_gemm._C"), ("deep_ep", "deep_ep._C"), ("flash_mla", "flash_mla.cuda")):
        missing = {
            f"{one.scope}.{one.name}"
            for one in read_extension(source_root(source), module)
            if not one.digest and one.kind != "module"
        }
        assert missing <= {
            "epilogue.Identity.__init__",
            "epilogue.BF16StochasticRounding.__init__",
            "BufferBase.destroy",
        }


# -- mutations of upstream ---------------------------------------------------------------------------------------


def _relaid(data: bytes) -> bytes:
    """The same tokens on lines of their own, with comments between; preprocessor lines as they were."""
    strings = [(token.start, token.end) for token in tokens(data) if token.kind in ("raw", "string")]
    out: list[bytes] = []
    done = 0
    for match in re.finditer(rb"^[ \t]*#(?:[^\n\\]|\\\r?\n|\\.)*", data, re.MULTILINE):
        if match.start() < done or any(start < match.start() < end for start, end in strings):
            continue
        out.extend(token.text + b" /* note */" for token in tokens(data[done : match.start()]))
        out.append(match.group())
        done = match.end()
    out.extend(token.text + b" // note" for token in tokens(data[done:]))
    return b"\n".join(out) + b"\n"


@pytest.fixture(scope="session")
def copied(source_root: SourceRoot, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a source's own C++ files, small enough to change."""

    def copy(name: str) -> Path:
        target = tmp_path_factory.mktemp(name)
        ignored = shutil.ignore_patterns("cutlass", "3rdparty", "cuda_kernels", "ascend_kernels", "*.py")
        for folder in ("csrc", "third-party"):
            if (source_root(name) / folder).is_dir():
                shutil.copytree(source_root(name) / folder, target / folder, ignore=ignored)
        return target

    return copy


def _facts(root: Path, module: str) -> dict[str, BindingFacts]:
    return {name: replace(one, line=0) for name, one in by_path(read_extension(root, module)).items()}


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("deep_gemm", "deep_gemm._C"),
        ("deep_ep", "deep_ep._C"),
        ("flash_mla", "flash_mla.cuda"),
        ("deepinfer", "deepinfer._C"),
    ],
)
def test_layout_and_comments_change_nothing(copied: Callable[[str], Path], source: str, module: str) -> None:
    root = copied(source)
    before = _facts(root, module)
    for path in sorted(root.rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".h", ".cuh", ".cu"):
            path.write_bytes(_relaid(path.read_bytes()))
    assert _facts(root, module) == before


@pytest.mark.parametrize(
    ("source", "module", "path", "old", "new", "changed"),
    [
        ("deep_gemm", "deep_gemm._C", "csrc/apis/einsum.hpp", "make_tuple(1, 128, 128)", "make_tuple(1, 128, 64)", {"fp8_einsum": "signature"}),
        ("deep_gemm", "deep_gemm._C", "csrc/apis/hyperconnection.hpp", 'py::arg("sqr_sum")', 'py::arg("square_sum")', {"tf32_hc_prenorm_gemm": "signature"}),
        ("deep_gemm", "deep_gemm._C", "csrc/apis/gemm.hpp", 'm.def("batched_syrk"', 'm.def("batched_syrk2"', {"batched_syrk": "removed", "batched_syrk2": "added"}),
        ("deep_gemm", "deep_gemm._C", "csrc/apis/config.hpp", "runtime->set_tc_util(new_tc_util)", "runtime->set_tc_util(new_tc_util + 1)", {"set_tc_util": "digest"}),
        ("deep_gemm", "deep_gemm._C", "csrc/apis/epilogue_class.hpp", "const float&>(), pybind11", "const int&>(), pybind11", {"epilogue.Alpha.__init__": "signature"}),
        ("deep_ep", "deep_ep._C", "csrc/comm/handle.hpp", '.def_readonly("num_workspace_bytes"', '.def_readwrite("num_workspace_bytes"', {"Context.num_workspace_bytes": "writable"}),
        ("deep_ep", "deep_ep._C", "csrc/buffers/pp.hpp", 'py::arg("num_sms") = 0)\n        .def("recv"', 'py::arg("num_sms") = 1)\n        .def("recv"', {"PPBuffer.send": "signature"}),
        ("deepinfer", "deepinfer._C", "csrc/engine/pybind_output.cpp", '.value("MASK"', '.value("MASKED"', {"engine.YocoPrefillTruncationMode.MASK": "removed", "engine.YocoPrefillTruncationMode.MASKED": "added"}),
    ],
)  # fmt: skip
def test_a_change_moves_what_it_concerns_and_nothing_else(
    copied: Callable[[str], Path], source: str, module: str, path: str, old: str, new: str, changed: dict[str, str]
) -> None:
    root = copied(source)
    before = _facts(root, module)
    text = (root / path).read_text()
    assert text.count(old) == 1
    (root / path).write_text(text.replace(old, new))
    after = _facts(root, module)
    found: dict[str, str] = {}
    for name in before.keys() | after.keys():
        if name not in after:
            found[name] = "removed"
        elif name not in before:
            found[name] = "added"
        else:
            fields = ("signature", "writable", "kind", "digest")
            moved = [one for one in fields if getattr(before[name], one) != getattr(after[name], one)]
            found.update({name: moved[0]} if moved else {})
    assert found == changed
