"""A user's half-open connections: ``python -m tests.scenarios.half_open UID PORT``, as many as the siege's.

Each sends half a header, half a body or nothing, and is opened again where it is closed. Prints a line once all have
begun, another once as many have been closed. Ends when its standard input does.
"""

from __future__ import annotations

import resource
import select
import sys

from bench.siege.connections import CONNECTIONS, KINDS, Attack
from tests.scenarios.client import become


def main() -> None:
    uid, port = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * CONNECTIONS), hard))
    become(uid)
    attack = Attack(port, list(KINDS.values()))
    told = 0
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        attack.turn(0.05)
        if (told, attack.begun >= CONNECTIONS) == (0, True) or (told, attack.closed >= CONNECTIONS) == (1, True):
            told += 1
            print(told, flush=True)


if __name__ == "__main__":
    main()
