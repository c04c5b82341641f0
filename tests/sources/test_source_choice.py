"""Which file of a version is read."""

from __future__ import annotations

import itertools
import random

import pytest

from porter.errors import DistributionNotFoundError, HashMismatchError
from porter.sources.choice import preference
from porter.sources.distribution import Candidate, choose
from porter.sources.spec import DistributionSpec
from tests.sources.test_source_spec import Record

SPEC = DistributionSpec("demo", "demo", "1.0")
SELECT = "tokenspeed_deepselect-1.0.0.post20260910"


@pytest.mark.parametrize(
    ("wanted", "others"),
    [
        ("tile_kernels-2.1.0-py3-none-any.whl", ["tile_kernels-2.1.0.tar.gz"]),
        ("demo-1.0-py2.py3-none-any.whl", ["demo-1.0.tar.gz", "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"]),
        ("deepinfer-0.1.0.tar.gz", []),
        ("demo-1.0.tar.gz", ["demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "demo-1.0.zip", "demo-1.0.tar.xz"]),
        ("demo-1.0.tar.gz", ["demo-1.0-py3-none-manylinux_2_28_x86_64.whl"]),
        (
            f"{SELECT}-cp312-cp312-manylinux_2_28_x86_64.whl",
            [
                f"{SELECT}-cp{python}-cp{python}-manylinux_2_28_{machine}.whl"
                for python, machine in itertools.product((310, 311, 312, 313), ("aarch64", "x86_64"))
                if (python, machine) != (312, "x86_64")
            ],
        ),
        (
            "tilelang-0.1.15-cp39-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
            [
                "tilelang-0.1.15-cp39-abi3-macosx_11_0_arm64.whl",
                "tilelang-0.1.15-cp39-abi3-manylinux_2_34_aarch64.whl",
                "tilelang-0.1.15-cp39-abi3-win_amd64.whl",
            ],
        ),
        ("demo-1.0-cp312-cp312-linux_x86_64.whl", ["demo-1.0-cp39-abi3-linux_x86_64.whl"]),
        ("demo-1.0-cp39-abi3-linux_x86_64.whl", ["demo-1.0-cp311-cp311-linux_x86_64.whl"]),
        ("demo-1.0-cp313-cp313-manylinux_2_28_x86_64.whl", ["demo-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"]),
        ("demo-1.0-cp313-cp313-manylinux_2_28_aarch64.whl", ["demo-1.0-cp312-cp312-macosx_11_0_arm64.whl"]),
        ("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", ["demo-1.0-cp312-cp312-musllinux_1_2_x86_64.whl"]),
    ],
)
def test_preferred_file(wanted: str, others: list[str]) -> None:
    """In whatever order the index lists them."""
    names = [wanted, *others]
    for seed in range(6):
        random.Random(seed).shuffle(names)
        assert choose([Candidate(name) for name in names], SPEC, None).filename == wanted


def test_order_is_total() -> None:
    names = ["demo-1.0-cp311-cp311-linux_x86_64.whl", "demo-1.0-cp310-cp310-linux_x86_64.whl"]
    assert min(names, key=preference) == "demo-1.0-cp310-cp310-linux_x86_64.whl"
    assert len({preference(name) for name in names}) == 2


def test_withdrawn_file_comes_last() -> None:
    withdrawn = Candidate("demo-1.0-py3-none-any.whl", yanked=True)
    sdist = Candidate("demo-1.0.tar.gz")
    assert choose([withdrawn, sdist], SPEC, None) is sdist
    assert choose([withdrawn], SPEC, None) is withdrawn


def test_first_place_wins_among_equals() -> None:
    first, second = (Candidate("demo-1.0.tar.gz", (("sha256", digit * 64),)) for digit in "12")
    assert choose([first, second], SPEC, None) is first


A, B = (("sha256", "a" * 64),), (("sha256", "b" * 64),)


def test_lock_decides() -> None:
    """Over the preference, and by digest over the first place."""
    wheel, sdist = Candidate("demo-1.0-py3-none-any.whl", B), Candidate("demo-1.0.tar.gz", A)
    assert choose([wheel, sdist], SPEC, Record()) is sdist
    other = Candidate("demo-1.0.tar.gz", B)
    assert choose([other, sdist], SPEC, Record()) is sdist
    unstated = Candidate("demo-1.0.tar.gz")
    assert choose([other, unstated], SPEC, Record()) is unstated


def test_locked_file_of_another_digest() -> None:
    with pytest.raises(HashMismatchError) as caught:
        choose([Candidate("demo-1.0.tar.gz", B)], SPEC, Record())
    assert "a" * 64 in caught.value.message
    assert "b" * 64 in caught.value.message
    assert "porter.lock" in str(caught.value.fix)


def test_locked_file_that_is_gone() -> None:
    with pytest.raises(DistributionNotFoundError, match=r"demo-1\.0\.tar\.gz.*demo-1\.0-py3-none-any\.whl") as caught:
        choose([Candidate("demo-1.0-py3-none-any.whl", B)], SPEC, Record())
    assert "porter sync" in str(caught.value.fix)
