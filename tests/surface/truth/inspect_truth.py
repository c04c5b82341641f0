"""Run in a process of its own: imports a real package and prints, as JSON, what its modules hold by ``inspect``.

``python inspect_truth.py REQUEST``: a JSON file with ``paths`` (put on sys.path), ``modules`` (to import, in order),
``fakes`` (dotted names of compiled modules that are stood in for by modules with any attribute) and ``environment``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

MARK = "INSPECT-TRUTH "


def stand_in(name: str) -> types.ModuleType:
    """A module that has any attribute: a class for a capitalised name, else a function."""
    module = types.ModuleType(name)
    module.__path__ = []

    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        full = f"{name}.{wanted}"
        if full in sys.modules:
            return sys.modules[full]
        value: Any = type(wanted, (), {"__module__": name}) if wanted[:1].isupper() else lambda *_a, **_k: 0
        if not isinstance(value, type):
            value.__module__, value.__name__, value.__qualname__ = name, wanted, wanted
        setattr(module, wanted, value)
        return value

    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module


def functions_behind(value: object, depth: int = 0) -> Iterator[types.FunctionType]:
    """Plain functions that an object wraps, itself first: by attribute, by closure, by what a descriptor holds."""
    if depth > 6:
        return
    if isinstance(value, types.FunctionType):
        yield value
        cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        for inner in (value.__dict__.get("__wrapped__"), *cells):
            if callable(inner):
                yield from functions_behind(inner, depth + 1)
        return
    # JITImpl keeps the function as ``func``, triton as ``fn``, a property as ``fget``, a method as ``__func__``.
    for name in ("__wrapped__", "__func__", "fget", "func", "orig_func", "fn", "_func"):
        try:
            inner = inspect.getattr_static(value, name, None)
            inner = getattr(value, name) if inner is not None else None
        except Exception:
            inner = None
        if inner is not None and callable(inner) and inner is not value:
            yield from functions_behind(inner, depth + 1)


def classes_behind(value: object) -> Iterator[type]:
    """Classes that the methods of a class close over."""
    for method in vars(value).values():
        for cell in getattr(method, "__closure__", None) or ():
            if _filled(cell) and isinstance(cell.cell_contents, type):
                yield cell.cell_contents


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def described(
    value: object, name: str, namespace: dict[str, Any], given: list[str | None] | None
) -> dict[str, Any] | None:
    """Signature of the function that ``value`` is or wraps: the innermost one called ``name``."""
    found = [
        function
        for function in functions_behind(value)
        if function.__name__ == name or function.__qualname__.endswith("." + name)
    ]
    if not found:
        return None
    function = found[-1]
    rows = []
    for index, parameter in enumerate(inspect.signature(function, follow_wrapped=False).parameters.values()):
        default = None
        if parameter.default is not inspect.Parameter.empty:
            text = given[index] if given is not None and index < len(given) else None
            default = {"repr": repr(parameter.default)[:200], "same": same(parameter.default, text, namespace)}
        rows.append([parameter.name, parameter.kind.description, default])
    code = function.__code__
    return {
        "parameters": rows,
        "line": code.co_firstlineno,
        "file": code.co_filename,
        "async": inspect.iscoroutinefunction(function),
    }


def same(value: object, text: str | None, namespace: dict[str, Any]) -> bool:
    """Is ``text``, evaluated where it stands, the default at run time?"""
    if text is None:
        return False
    try:
        other = eval(text, dict(namespace))
    except Exception:
        return False
    if other is value or type(other) is not type(value):
        return other is value
    if isinstance(value, types.FunctionType) and isinstance(other, types.FunctionType):
        mine, theirs = value.__code__, other.__code__
        return mine.co_code == theirs.co_code and mine.co_consts == theirs.co_consts
    try:
        return bool(other == value) or repr(other) == repr(value)
    except Exception:
        return repr(other) == repr(value)


def member(owner: object, names: list[str]) -> tuple[object, bool]:
    """Attribute of a class as its ``__dict__`` holds it, and whether it is there itself (not inherited)."""
    value: object = owner
    for name in names:
        table = vars(value) if isinstance(value, (type, types.ModuleType)) else {}
        if name not in table:
            return getattr(value, name, None), False
        value = table[name]
    return value, True


def ask(symbol: dict[str, Any]) -> dict[str, Any]:
    """What run time says of one symbol."""
    module = sys.modules.get(symbol["module"])
    if module is None:
        return {"error": "module not imported"}
    *owners, last = symbol["qualname"].split(".")
    owner: Any = module
    namespace = dict(vars(module))
    for name in owners:
        owner = vars(owner).get(name, getattr(owner, name, None)) if owner is not None else None
        for _ in range(6):
            if isinstance(owner, type) or owner is None:
                break
            owner = getattr(owner, "__wrapped__", None)
        if owner is None:
            return {"error": "absent"}
        namespace.update(vars(owner))
    table = dict(vars(owner))
    if last not in table and not hasattr(owner, last):
        if last in getattr(owner, "__annotations__", {}):
            return {"type": "annotation", "is_class": False}
        # A class decorator may have put another class in the place of the one that is written.
        original = next(
            (kind for kind in classes_behind(owner) if kind.__name__ == owner.__name__ and last in vars(kind)), None
        )
        if original is None:
            return {"error": "absent"}
        owner, table = original, dict(vars(original))
    value = table[last] if last in table else getattr(owner, last)
    out: dict[str, Any] = {"type": type(value).__name__, "is_class": isinstance(value, type)}
    if symbol.get("defaults") is not None:
        out["function"] = described(value, symbol.get("defined_as") or last, namespace, symbol["defaults"])
    if isinstance(value, type):
        try:
            out["bases"] = [base.__name__ for base in value.__bases__]
            out["constructor"] = [[p.name, p.kind.description] for p in inspect.signature(value).parameters.values()]
        except (ValueError, TypeError):
            out["constructor"] = None
    return out


def module_names(module: types.ModuleType, package: str) -> dict[str, dict[str, Any]]:
    """Public names of a module that hold a function or class of ``package``, or any value where ``__all__`` lists it."""
    listed = getattr(module, "__all__", None)
    out: dict[str, dict[str, Any]] = {}
    for name in list(listed) if listed is not None else list(vars(module)):
        if (listed is None and name.startswith("_")) or not hasattr(module, name):
            continue
        value = getattr(module, name)
        home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType) or callable(value) or listed is not None:
            inside = isinstance(home, str) and (home == package or home.startswith(package + "."))
            out[name] = {
                "home": home if isinstance(home, str) else None,
                "inside": inside,
                "module": isinstance(value, types.ModuleType),
                "name": (
                    getattr(value, "__qualname__", None)
                    if isinstance(getattr(value, "__qualname__", None), str)
                    else None
                ),
            }
    return out


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    warnings.simplefilter("ignore")
    sys.path[:0] = request["paths"]
    for name in request["fakes"]:
        sys.modules[name] = stand_in(name)
    for name in request["fakes"]:
        parent, _, last = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], last, sys.modules[name])
    errors: dict[str, str] = {}
    for name in request["modules"]:
        try:
            importlib.import_module(name)
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"[:300]
    package = request["package"]
    modules = {
        name: module_names(sys.modules[name], package)
        for name in request["modules"]
        if name in sys.modules and name not in errors
    }
    symbols = {symbol["id"]: ask(symbol) for symbol in request["symbols"]}
    attributes = {name: sorted(dir(sys.modules[name])) for name in modules}
    print(MARK + json.dumps({"errors": errors, "modules": modules, "attributes": attributes, "symbols": symbols}))


if __name__ == "__main__":
    main()
