"""Kernels against upstream's own references, side by side in one run.

    python benchmarks/kernels.py [--select NAME ...] [--json FILE] [--shapes decode,prefill,single]

No input is made here: upstream's interface-module tests run on the overrides, the arguments of a kernel call and of the
reference call of the same case are recorded, and both are replayed turn by turn on fresh copies, one thread, medians of
at least 15 runs, in processor time. ``decode`` is a step of eight sequences (each kind's case that is nearest to eight
rows, upstream's fixed sizes set to that), ``prefill`` each kind's largest case, of a few hundred to a few thousand
tokens. ``single``, a step of one sequence, is shown when asked for and not judged: there the processor's time is that
of calling ops, which on the device is 60 us for each whatever the side. What is left out is listed with its reason.
Copying is outside of the timed part; both sides run without autograd.

Exits 1 when a judged kernel is below 0.9 of the reference's speed, when the geometric mean over the functions is below
2, or when a cache write costs more for a cache 16 times larger: in ops, in bytes made, or in time. ``ops`` are the ATen
ops dispatched a call, views left out: each costs about 60 us on the device, whatever the processor says here. Two things are dearer in a kernel than in a
reference on the processor: the sampler's hash is made of 32-bit words, as the device does not compute with 64-bit
ones, and rows are written by int32 index, which the processor does more slowly than a scatter by int64.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kernel_replay import CACHE_RATIO, FLOOR, GROWTH, MEAN, SETTINGS  # noqa: E402

from porter.config import ENGINE, load_config  # noqa: E402
from porter.lock import read_lock  # noqa: E402
from porter.upstream import Request, resolve_sources  # noqa: E402
from porter.verify.api import VerifyOptions, prepare, process_environment, pytest_command  # noqa: E402
from porter.verify.shrink import Shrink, load_shrinks, shrink_folder  # noqa: E402

# Tests that only draw again and again from rows that other cases have too.
_LEFT_OUT = (
    "gof",
    "degenerate",
    "extreme_scale",
    "tiny_prob",
    "batch_invariant",
    "distribution",
    "signed",
    "zero-residual",
)

# Sizes beside porter/verify/shrink.toml's: (file, scope, number there, times, name it is bound to) and the number here.
_PREFILL = {
    ("random_sampling.py", "test_random_sampling", 129280, 1, ""): 129280,
    ("dflash.py", "test_confidence_head", 4097, 1, ""): 517,
    ("dflash.py", "test_dflash_input_store", 8198, 1, ""): 233,
    ("dflash.py", "test_dflash_input_store", 4097, 1, ""): 233,
    ("candidate_blocks.py", "test_candidate_block_max", 6777, 1, ""): 17,
    ("candidate_blocks.py", "test_candidate_block_max", 67, 1, ""): 17,
    ("image_embed_ops.py", "test_replace_input_embeds", 16384, 1, ""): 4096,
    ("image_embed_ops.py", "test_rgb_pad_to_patches", 50, 1, ""): 4,
    ("sampler.py", "test_map_lookup", 1536, 1, ""): 256,
    ("kv_index_cat.py", "_KV_INDEX_CAT_CASES", 16384, 2, ""): 4096,
    ("sum_smaller_probs.py", "test_sum_smaller_probs", 256, 1, ""): 64,
    ("cache_common.py", "KV_CACHE_TEST_NUM_TOKENS", 67890, 1, ""): 4099,
    ("load_paged_kv_cache.py", "_LOAD_TEST_CASES", 67890, 2, ""): 4099,
    ("store_kv_cache.py", "_STORE_TEST_CASES", 16387, 4, ""): 4099,
    ("swa_index.py", "test_expand_swa_index", 65536, 1, ""): 8192,
    ("get_kv_index.py", "test_kv_index", 262144, 2, ""): 16384,
    ("fused_sample.py", "_correctness_cases", 256, 1, ""): 4,
    ("fused_sample.py", "_correctness_cases", 1536, 1, ""): 8,
    ("fused_transform.py", "_FusedTransformCase", 2333, 1, ""): 261,
    ("fused_transform.py", "_FUSED_TRANSFORM_CASES", 32769, 6, ""): 259,
    ("fused_transform.py", "_FUSED_TRANSFORM_CASES", 8193, 3, ""): 515,
    ("random_sampling.py", "test_random_sampling", 4096, 1, ""): 128,
    ("random_sampling.py", "test_random_sampling", 256, 1, ""): 64,
}
# The same for a step of one sequence and of several.
_STEPS = {
    ("random_sampling.py", "test_random_sampling", 129280, 1, ""): (129280, 129280),
    ("fused_transform.py", "_FusedTransformCase", 2333, 1, ""): (2, 8),
    ("fused_transform.py", "_FUSED_TRANSFORM_CASES", 2333, 3, ""): (2, 8),
    ("fused_transform.py", "_FUSED_TRANSFORM_CASES", 17, 6, ""): (1, 8),
    ("fused_transform.py", "_CORRECTNESS_ONLY_CASES", 8193, 1, ""): (2, 8),
    ("norm.py", "_NUM_TOKENS", 16384, 1, ""): (2, 8),
    ("candidate_blocks.py", "test_restore_candidate_indices_inplace", 67, 1, ""): (1, 8),
    ("candidate_blocks.py", "test_get_candidate_compact_lens", 67, 1, ""): (1, 8),
    ("compress.py", "_test_compress_state_prefill", 16, 1, "num_seq"): (1, 8),
    ("compress.py", "_test_compress_state_decode", 256, 1, "num_seq"): (1, 8),
    ("compress.py", "_test_compress_state_decode", 300, 1, "num_state_slots"): (4, 16),
    ("compute_seqlens_k_zos.py", "test_compute_seqlens_k_zos", 512, 1, ""): (2, 8),
    ("dflash.py", "test_confidence_head", 4097, 1, ""): (1, 8),
    ("dflash.py", "test_dflash_input_store", 3, 1, "n"): (1, 8),
    ("dflash_copy.py", "test_copy_dflash_decode_input", 257, 1, ""): (1, 5),
    ("dflash_copy.py", "test_copy_dflash_decode_input", 512, 1, ""): (2, 8),
    ("flash_mla_utils.py", "test_convert_kv_index", 17, 1, ""): (1, 8),
    ("gather_engram_tokens_zos.py", "test_gather_engram_tokens_zos", 128, 1, ""): (1, 8),
    ("gather_input_ids_zos.py", "test_gather_input_ids_zos", 128, 1, ""): (1, 8),
    ("kv_index_cat.py", "_KV_INDEX_CAT_CASES", 16384, 2, ""): (1, 8),
    ("prepare_v4_decode_metadata.py", "test_prepare_v4_decode_metadata", 1024, 1, "n_seq"): (2, 8),
    ("random_sampling.py", "test_random_sampling", 4096, 1, ""): (2, 16),
    ("random_sampling.py", "test_random_sampling", 256, 1, ""): (1, 8),
    ("fused_sample.py", "_correctness_cases", 256, 1, ""): (1, 8),
    ("fused_sample.py", "_correctness_cases", 1536, 1, ""): (2, 16),
    ("sampler.py", "test_prepare_verification_metadata", 256, 1, ""): (1, 8),
    ("sampler.py", "test_expand_sampling_params", 256, 1, ""): (1, 8),
    ("sampler.py", "test_map_lookup", 256, 1, ""): (1, 8),
    ("sampler.py", "test_remap_draft_topk", 256, 1, ""): (1, 8),
    ("sampler.py", "test_get_accept_result", 259, 1, ""): (1, 8),
    ("sampler.py", "test_finalize_verification", 259, 1, ""): (1, 8),
    ("store_mtp_info.py", "test_store_mtp_info", 33, 1, ""): (2, 8),
    ("sum_smaller_probs.py", "test_sum_smaller_probs", 256, 1, ""): (1, 8),
}


# Rows of the case that is wanted of each kind: the nearest above, else the nearest below; None for the largest case.
_ROWS = {"single": 1, "decode": 8, "prefill": None}
_JUDGED = ("decode", "prefill")


def shrinks(shapes: str) -> list[Shrink]:
    """Size substitutions of one class of shapes: porter's own, some replaced."""
    sizes = _PREFILL if shapes == "prefill" else {key: pair[shapes == "decode"] for key, pair in _STEPS.items()}
    mine = {(*key[:3], key[4]): (key[3], new) for key, new in sizes.items()}
    out = []
    for shrink in load_shrinks():
        count, new = mine.pop((shrink.file, shrink.scope, shrink.old, shrink.name), (shrink.count, shrink.new))
        out.append(dataclasses.replace(shrink, count=count, new=new))
    out += [Shrink(file, scope, old, new, count, name) for (file, scope, old, name), (count, new) in mine.items()]
    return out


def speak_of_the_processor(folder: Path) -> None:
    """Name the processor where a throw-away tree's interface modules name a GPU: references must run unaided."""
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"cuda"', '"cpu"').replace(".cuda()", ".cpu()"), encoding="utf-8")


def measure(shapes: str, select: Sequence[str] | None, upstream: Path) -> list[dict[str, Any]]:
    """Rows of one class of shapes, in the order measured.

    Raises:
        SystemExit: the tests could not be run at all.
    """
    options = VerifyOptions(
        upstream=upstream,
        overrides=ROOT / "overrides",
        full=True,
        memory=10 << 30,
        seconds=300.0,
        threads=1,
        select=tuple(select) if select else None,
    )
    with prepare(options) as prepared, tempfile.TemporaryDirectory() as folder:
        shrink_folder(prepared.workspace.ops, shrinks(shapes))
        speak_of_the_processor(prepared.workspace.ops)
        output = Path(folder) / "rows.jsonl"
        environment = process_environment(prepared.session_path, 1, 1)
        environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), environment["PYTHONPATH"]))
        # Keep freed memory: fresh pages for every temporary would be most of a large case's time, on both sides.
        environment |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
        environment[SETTINGS] = json.dumps({"rows": _ROWS[shapes], "output": str(output)})
        extra = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "kernel_replay"]
        extra += ["-k", " and ".join(f"not {word}" for word in _LEFT_OUT)]
        done = subprocess.run(
            pytest_command(prepared, extra),
            cwd=prepared.workspace.root,
            env=environment,
            capture_output=True,
            text=True,
        )
        if not output.exists():
            raise SystemExit(done.stdout[-4000:] + done.stderr[-4000:])
        Path(folder, "log").write_text(done.stdout)
        if os.environ.get("PORTER_BENCHMARK_LOG"):
            Path(os.environ["PORTER_BENCHMARK_LOG"]).write_text(done.stdout + done.stderr)
        return [{**json.loads(line), "shapes": shapes} for line in output.read_text().splitlines()]


def geometric(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _ops(rows: Sequence[dict[str, Any]], key: str) -> float:
    return geometric([row[key] for row in rows if row["kernel_ops"] and row["reference_ops"]] or [1])


def _label(row: dict[str, Any]) -> str:
    name = row["name"].replace("fused_norm_rope_hadamard_cast_store_kvcache", "fused_transform")
    return f"{name} {row['variant']}".strip()


def uncompared(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Factories of the overrides that no row is about: upstream has no reference function for them."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "overrides" / "tilelang_ops").glob("*.py"))
    names = {name for text in texts for name in re.findall(r"^def (\w+_tl)\(", text, re.MULTILINE)}
    return sorted(names - {factory for row in rows for factory in row.get("factories", ())})


def report(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the tables; True when every promise is kept."""
    speed = [row for row in rows if row["kind"] == "speed"]
    left_out = [row for row in rows if row["kind"] == "left out"]
    caches = [row for row in rows if row["kind"] == "cache"]
    by_name: dict[str, list[float]] = {}
    below = []
    print(
        f"{'kernel':88s} {'shapes':8s} {'tokens':>7s} {'kernel us':>10s} {'ref us':>10s} {'ratio':>7s} {'ops':>4s} {'ref':>5s}"
    )
    for row in sorted(speed, key=lambda row: (row["name"], row["variant"], row["shapes"])):
        ratio = row["reference_us"] / row["kernel_us"]
        judged = row["shapes"] in _JUDGED
        if judged and row["reference_ops"]:
            by_name.setdefault(row["name"], []).append(ratio)
        label = _label(row)
        mark = "" if ratio >= FLOOR else "  below" if judged else "  not judged"
        if judged and ratio < FLOOR:
            below.append(label)
        print(
            f"{label[:88]:88s} {row['shapes']:8s} {row['tokens']:7d} {row['kernel_us']:10.1f} {row['reference_us']:10.1f}"
            f" {ratio:7.2f} {row['kernel_ops']:4d} {row['reference_ops']:5d}{mark}"
        )
    mean = geometric([geometric(ratios) for ratios in by_name.values()]) if by_name else math.nan
    print(
        f"\n{len(speed)} comparisons of {len(by_name)} functions; geometric mean {mean:.2f} (at least {MEAN:g}), ",
        end="",
    )
    print(f"{len(below)} below {FLOOR:g}")
    print(f"ops a call, geometric mean: {_ops(speed, 'kernel_ops'):.1f} here, {_ops(speed, 'reference_ops'):.1f} there")
    lists = sorted({row["name"] for row in speed if not row["reference_ops"]})
    if lists:
        print(f"not in the mean: {', '.join(lists)} (the reference loops over Python lists and makes no tensor)")
    for row in sorted(left_out, key=lambda row: (row["shapes"], row["name"])):
        print(f"left out of {row['shapes']}: {row['name']}, {row['calls']} calls: {row['reason']}")
    print(
        f"left out of both: tests named {', '.join(_LEFT_OUT)} (they draw again and again from rows that others have)"
    )
    dear = []
    if caches:
        print(f"\ncache writes cost the same for a cache {GROWTH} times larger")
        print(
            f"{'kernel':88s} {'shapes':8s} {'cache MB':>9s} {'us':>9s} {'larger us':>10s} {'ratio':>6s} {'made bytes':>22s}"
        )
    for row in sorted(caches, key=lambda row: (row["name"], row["variant"], row["shapes"])):
        ratio = row["large_us"] / row["small_us"]
        label = _label(row)
        same = row["small_bytes"] == row["large_bytes"] and row["small_ops"] == row["large_ops"]
        if ratio > CACHE_RATIO or not same:
            dear.append(label)
        print(
            f"{label[:88]:88s} {row['shapes']:8s} {row['cache_bytes'] / 1e6:9.2f} {row['small_us']:9.1f} {row['large_us']:10.1f}"
            f" {ratio:6.2f} {row['small_bytes']:11d}{row['large_bytes']:11d}{'  dearer' if label in dear[-1:] else ''}"
        )
    return not below and not dear and (len(by_name) < 2 or mean >= MEAN)


def main() -> int:
    """Measure, print, and say whether the promises are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--select", nargs="+", metavar="NAME", help="factories, with or without _tl")
    parser.add_argument("--shapes", default="decode,prefill", help="of decode, prefill and single")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    arguments = parser.parse_args()
    config = load_config(ROOT / "porter.toml")
    lock = read_lock(config.lock_path)
    upstream = resolve_sources(config, Request(only=(ENGINE,)), lock)[ENGINE].root
    select = [name.removesuffix("_tl") + "_tl" for name in arguments.select or ()]
    rows: list[dict[str, Any]] = []
    for shapes in arguments.shapes.split(","):
        rows += measure(shapes, select, upstream)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    kept = report(rows)
    if not select:
        print("\nwithout a reference: " + (", ".join(uncompared(rows)) or "none"))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
