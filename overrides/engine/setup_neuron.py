"""Build of ``deepinfer._C`` for Neuron: host code only, no accelerator's headers.

``setup.py`` calls this where ``DEEPINFER_ACCELERATOR=neuron`` is set. The library is built into
``deepinfer/_so/neuron-<machine>/``, where ``deepinfer`` looks for it, so that builds for several accelerators share a
tree.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from setuptools import Extension
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent
SOURCES = ("csrc/neuron/utils.cpp", "csrc/graph_timer/graph_timer_neuron.cpp")

_STANDARD = "-std=c++20"
_HAS_FORMAT = "#include <format>\n#ifndef __cpp_lib_format\n#error incomplete\n#endif\n"
_HAS_FMT = "#define FMT_HEADER_ONLY\n#include <fmt/format.h>\n"


def extension(sources: list[str], flags: list[str], libraries: list[str], include_dirs: list[str]) -> Extension:
    """The extension module.

    Parameters:
        sources: C++ sources that all accelerators share, relative to the root.
        flags: their compiler flags.
        libraries: their libraries.
        include_dirs: their include folders.

    Raises RuntimeError where the compiler has no ``<format>``, and neither torch nor the system brings libfmt's headers.
    """
    folder = f"deepinfer/_so/neuron-{platform.machine()}"
    # build_ext --inplace copies the library there and makes no folder.
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    return cpp_extension.CppExtension(
        name=f"{folder.replace('/', '.')}._C",
        sources=[*sources, *SOURCES],
        extra_compile_args={"cxx": [*flags, *format_flags(), "-fvisibility=hidden", "-DWITH_NEURON"]},
        libraries=libraries,
        include_dirs=include_dirs,
        runtime_library_dirs=cpp_extension.library_paths(),
    )


def format_flags() -> list[str]:
    """Flags that make ``#include <format>`` work: none for a compiler that has it (GCC 13 and later).

    libfmt's headers supply it else: torch's own copy, which the include path has first, or the system's.
    """
    if _compiles(_HAS_FORMAT):
        return []
    flags = ["-isystem", str(ROOT / "csrc" / "neuron" / "compat"), "-DFMT_HEADER_ONLY"]
    if not _compiles(_HAS_FMT, *(f"-I{folder}" for folder in cpp_extension.include_paths())):
        raise RuntimeError(
            f"{cpp_extension.get_cxx_compiler()} has no <format>: use GCC 13 or later (CXX=g++-13), "
            "or install libfmt's headers (Debian and Ubuntu: apt-get install libfmt-dev)"
        )
    return flags


def requirements() -> list[str]:
    """Requirements from requirements-neuron.txt, comments and blank lines left out."""
    lines = (line.split("#", 1)[0].strip() for line in (ROOT / "requirements-neuron.txt").read_text().splitlines())
    return [line for line in lines if line]


def _compiles(source: str, *flags: str) -> bool:
    command = [cpp_extension.get_cxx_compiler(), _STANDARD, *flags, "-x", "c++", "-fsyntax-only", "-"]
    try:
        return (
            subprocess.run(
                command, input=source, text=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}
            ).returncode
            == 0
        )
    except OSError:
        return True  # no compiler: the build itself says so
