"""``python -m porter.demo``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from porter.config import find_config, load_config
from porter.demo import checkpoint
from porter.demo.api import DemoOptions, demo, render
from porter.demo.workspace import Target
from porter.errors import PorterError
from porter.sources.progress import progress_for


def main() -> int:
    """Run the demo, or write a checkpoint alone; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m porter.demo", description=demo.__doc__)
    defaults = DemoOptions()
    parser.add_argument("prompts", nargs="*", help="what to continue; a few sentences of the demo's own by default")
    parser.add_argument("--project", type=Path, default=Path(), help="folder of porter.toml, or one below it")
    parser.add_argument("--max-tokens", type=int, default=defaults.max_tokens)
    parser.add_argument("--temperature", type=float, default=defaults.temperature, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the draw, above temperature 0")
    parser.add_argument("--model", type=Path, help="a checkpoint instead of the tiny one")
    parser.add_argument("--device", choices=[*Target], default=defaults.target, help="sim: the simulated device")
    parser.add_argument("--offline", action="store_true", help="use the cache alone, never the network")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="only write the tiny checkpoint there")
    parser.add_argument("--variant", choices=[*checkpoint.Variant], default="released", help="of --checkpoint")
    parser.add_argument("--checkpoint-seed", type=int, default=defaults.checkpoint_seed)
    given = parser.parse_args()
    if given.checkpoint is not None:
        folder = checkpoint.write(
            given.checkpoint, seed=given.checkpoint_seed, variant=checkpoint.Variant(given.variant)
        )
        print(f"wrote {folder}")
        return 0
    options = DemoOptions(
        prompts=tuple(given.prompts) or defaults.prompts,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        seed=given.seed,
        checkpoint_seed=given.checkpoint_seed,
        model=given.model,
        offline=given.offline,
        target=Target(given.device),
    )
    try:
        result = demo(load_config(find_config(given.project.absolute())), options, progress=progress_for())
    except PorterError as error:
        print(f"porter: {error.render()}" + (f"\n  fix: {error.fix}" if error.fix else ""), file=sys.stderr)
        return error.exit_code
    print(render(result), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
