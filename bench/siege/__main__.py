"""How does joulewise stand an attack by somebody on the same machine?

    python -m bench.siege [--part connections|saved_settings|forgeries …] [--seconds 60] [--seed N] [--json]

``connections``: half a header, half a body or nothing, from another user's 1,100 connections, beside honest requests;
``saved_settings``: damaged files of what a lease must give back; ``forgeries``: journals whose saving was made larger.
Each part's module says what its figures mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table

from bench.siege import connections, forgeries, saved_settings

PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "connections": lambda args: connections.figures(args.seconds),
    "saved_settings": lambda args: saved_settings.figures(args.seed),
    "forgeries": lambda args: forgeries.figures(args.seed),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.siege", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each kind of attack (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the damages and forgeries (default 0)")
    parser.add_argument("--json", action="store_true", help="end with one object {'figures': {…}}")
    args = parser.parse_args(argv)
    found: dict[str, float] = {}
    for part in args.part:
        print(f"{part} …", file=sys.stderr)
        found |= PARTS[part](args)
    if args.json:
        print(json.dumps({"figures": found}))
        return
    table = Table("figure", "value")
    for name, value in found.items():
        table.add_row(name, f"{value:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
