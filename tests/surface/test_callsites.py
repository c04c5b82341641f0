"""Call sites of factories, one case a way of calling."""

from __future__ import annotations

import libcst as cst
import pytest

from porter.surface.callsites import call_sites


def sites(text: str) -> list[tuple[str, str, str, str | None]]:
    found = call_sites(cst.parse_module(text), lambda node: 7)

    def shown(arguments: object) -> str | None:
        return None if arguments is None else ", ".join(f"{a.keyword}={a.text}" if a.keyword else a.text for a in arguments)  # type: ignore[attr-defined]

    return [(site.factory, site.caller, shown(site.arguments) or "", shown(site.kernel_arguments)) for site in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ops.a_tl(x.shape[0], eps=1e-6)(x, y)", [("a_tl", "f", "x.shape[0], eps=1e-6", "x, y")]),
        ("kernel = ops.a_tl(1)\n    kernel(x)", [("a_tl", "f", "1", "x")]),
        ("kernel: object = ops.a_tl(1)\n    kernel(x, **more)", [("a_tl", "f", "1", "x, **more")]),
        (
            "make = ops.a_tl\n    make.pass_configs['k'] = 1\n    kernel = make(1, **kw)\n    kernel(*xs)",
            [("a_tl", "f", "1, **kw", "*xs")],
        ),
        ("kernel = ops.a_tl(1)\n    kernel(x)\n    kernel(y)", [("a_tl", "f", "1", "x"), ("a_tl", "f", "1", "y")]),
        ("kernel = ops.a_tl(1)\n    return kernel", [("a_tl", "f", "1", None)]),
        ("run = partial(ops.a_tl(1), x, y=2)", [("a_tl", "f", "1", "x, y=2")]),
        ("kernel = ops.a_tl(1)\n    run = functools.partial(kernel, x)", [("a_tl", "f", "1", "x")]),
        (
            "if c:\n        k = ops.a_tl(1)\n    else:\n        k = ops.b_tl(2)\n    k(x)",
            [("a_tl", "f", "1", None), ("b_tl", "f", "2", "x")],
        ),
        ("given_tl(1)(x)", [("given_tl", "f", "1", "x")]),
        ("def fn_tl():\n        pass\n    fn_tl()", []),
        ("other.a_tl(1)", []),
        ("ops.plain(1)", []),
    ],
)
def test_ways_of_calling(body: str, expected: list[tuple[str, str, str, str | None]]) -> None:
    assert sites(f"from m import given_tl, ops\n\ndef f(x, y):\n    {body}\n") == expected


def test_methods_and_nested_functions_belong_to_what_is_around() -> None:
    text = (
        "from m import ops\nclass A:\n    def g(self):\n        def h():\n            ops.a_tl()(self)\n        h()\n"
    )
    assert sites(text) == [("a_tl", "A.g", "", "self")]


HELPER = "def fast(factory, other=None):\n    if gpu:\n        factory.pass_configs[Key.FAST] = True\n        other.flag = 1\n\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ops.a_tl.pass_configs[Key.FAST] = True\n    ops.a_tl(1)(x)", [("a_tl", "pass_configs[Key.FAST]=True")]),
        ("make = ops.a_tl\n    make.pass_configs = {}\n    make(1)(x)", [("a_tl", "pass_configs={}")]),
        ("fast(ops.a_tl)\n    ops.a_tl(1)(x)", [("a_tl", "pass_configs[Key.FAST]=True")]),
        (
            "fast(ops.a_tl, other=ops.b_tl)\n    ops.b_tl(1)(x)",
            [("b_tl", "flag=1"), ("a_tl", "pass_configs[Key.FAST]=True")],
        ),
        ("fast(x)\n    x.pass_configs['k'] = 1\n    ops.a_tl(1)(x)", [("a_tl", "")]),
        ("unknown(ops.a_tl)", []),
    ],
)
def test_attributes_set_on_a_factory(body: str, expected: list[tuple[str, str]]) -> None:
    found = call_sites(cst.parse_module(f"from m import ops\n\n{HELPER}def f(x):\n    {body}\n"), lambda node: 7)
    assert [(site.factory, ", ".join(f"{a.keyword}={a.text}" for a in site.attributes)) for site in found] == expected
