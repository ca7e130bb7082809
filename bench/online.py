"""How good is the online tuner, on measured tables (``--sweep``) and as a whole on virtual GPUs (``--virtual``)?

    python -m bench.online --sweep REAL.csv [REAL.csv …] [--train MICRO.csv] [--json] [--decisions FILE] [--seed N]
    python -m bench.online --virtual [--json] [--decisions FILE] [--seed N]

See `bench/online_sweep` and `bench/online_virtual` for what is asked and how it is scored. Tables for people and
progress go to stderr under ``--json``, which ends with one object, ``{"figures": {…}}``, on stdout; ``--decisions``
writes what every method did on every job, one JSON object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from joulewise.core.errors import JoulewiseError


def parser() -> argparse.ArgumentParser:
    """The options of both modes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = options.add_mutually_exclusive_group(required=True)
    mode.add_argument("--sweep", type=Path, nargs="+", metavar="FILE", help="measured applications over clocks")
    mode.add_argument("--virtual", action="store_true", help="virtual GPUs, the whole tuner, 30 minutes a job")
    options.add_argument("--train", type=Path, metavar="FILE", help="micro-benchmarks of the same GPU, with --sweep")
    options.add_argument("--seed", type=int, default=0, help="of the first repetition's draws")
    options.add_argument("--repeat", type=int, default=5, help="repetitions with other noise, with --sweep")
    options.add_argument("--only", default="", help="only workloads whose name contains this, with --virtual")
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--decisions", type=Path, metavar="FILE", help="write what was done on every job")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a mode; 2 where the input cannot be used."""
    options = parser().parse_args(arguments)
    try:
        if options.virtual:
            from bench import online_virtual

            return int(online_virtual.main(options))
        return sweep(options)
    except JoulewiseError as error:
        print(f"bench.online: {error}", file=sys.stderr)
        return 2


def sweep(options: argparse.Namespace) -> int:
    """``--sweep``."""
    from bench import online_sweep

    out = partial(print, file=sys.stderr) if options.json else print
    seeds = range(options.seed, options.seed + options.repeat)
    with contextlib.ExitStack() as stack:
        decisions = stack.enter_context(options.decisions.open("w", encoding="utf-8")) if options.decisions else None
        found = online_sweep.run(options.sweep, options.train, seeds=seeds, decisions=decisions)
    figures = online_sweep.report(found, out)
    if options.json:
        print(json.dumps({"figures": figures}))
    else:
        print("\n".join(f"{name} {value:g}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
