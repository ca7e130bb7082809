"""A user who owns a store and wants a larger saving: ``python -m tests.cli.forger DATABASE RUN FACTOR``.

Multiplies the joules of every block under a setting, recomputes the claim from the blocks, and seals the journal again.
"""

import sqlite3
import sys
from dataclasses import replace

from joulewise.core.event import Finished, Proven, Seen, Shifted, from_json, to_json
from joulewise.core.knob import DEFAULT
from joulewise.tune.proof import prove
from joulewise.tune.seal import Seal


def main() -> None:
    database, run, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT id, event FROM events WHERE stream = ? ORDER BY id", (run,)).fetchall()
    made, seal = [], Seal()
    for number, line in rows:
        event = from_json(line)
        if isinstance(event, Seen) and event.block.setting != DEFAULT:
            event = replace(event, block=replace(event.block, energy_j=event.block.energy_j * factor))
        if isinstance(event, Proven):
            seen = [each for each in made if isinstance(each, Seen)]
            event = prove(seen, [each for each in made if isinstance(each, Shifted)]).event(event.time_s)
        if isinstance(event, Finished):
            event = replace(event, facts={**event.facts, "seal": seal.facts})
        made.append(event)
        seal.add(event)
        connection.execute("UPDATE events SET event = ? WHERE stream = ? AND id = ?", (to_json(event), run, number))
    connection.commit()


if __name__ == "__main__":
    main()
