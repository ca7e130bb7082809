"""``joulewise countersign``: have a server on another host sign a run's seal, and keep its signature beside the run.

The signature pins journal and readings to a time: whoever rewrites them later no longer has it. It does not say that
they were true. ``joulewise verify --key`` checks it against a key that the verifier brings.
"""

from __future__ import annotations

import glob
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli.past_store import StoreFlag, opened_store
from joulewise.core.errors import BadSpec
from joulewise.core.event import Finished


def countersign(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run as 'history' names it.")],
    at: Annotated[str, typer.Option("--at", metavar="URL", help="The 'joulewise serve --countersign-key' that signs.")],
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Holds that server's token. Default: $JOULEWISE_TOKEN."),
    ] = None,
    database: StoreFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="The countersignature as one JSON object.")] = False,
) -> None:
    """Have another host sign that a run's journal exists now.

      joulewise countersign 20260314-101500-3f2a --at https://watcher:8745
      joulewise verify 20260314-101500-3f2a --key watcher.pub

    Do it at once when the run has ended: the signature tells the time, and
    nothing of what was done before. A server of your own proves nothing.
    """
    from joulewise.cli.recur_desk import read_token
    from joulewise.report.keeping import take_in
    from joulewise.serve.wire import Wire
    from joulewise.store import countersignature, views
    from joulewise.store.countersignature import Countersignature
    from joulewise.store.evidence import evidence
    from joulewise.tune.seal import seal_words

    store = opened_store(database)
    take_in(store)  # what is written later would look like a change of what was signed
    name = views.named(store.tables, run)
    _refuse_unsent(name)
    events = [event for _, event in store.journal(name).read()]
    finished = next((event for event in reversed(events) if isinstance(event, Finished)), None)
    seal = finished.facts.get("seal") if finished is not None else None
    if not isinstance(seal, dict):
        why = "has not ended yet" if finished is None else "was not tuned: its journal has no seal"
        raise BadSpec(f"run {name} {why}, so there is nothing to countersign")
    readings = evidence(store, name, events).digest
    asked = {"run": name, "events": seal.get("events"), "sha256": seal.get("sha256"), "readings_sha256": readings}
    signed = Countersignature.from_json(Wire(at, read_token(token_file)).call("POST", "/api/countersign", asked))
    said = signed.statement
    if (said.run, said.events, said.sha256, said.readings_sha256) != tuple(asked.values()):
        raise BadSpec(f"{at} signed something else than it was asked to; nothing was kept")
    countersignature.keep(store, signed)
    if as_json:
        typer.echo(json.dumps(signed.to_json(), allow_nan=False))
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(said.at_unix_s))
    typer.echo(f"run {name}: seal {seal_words(seal)} countersigned at {when} by {said.signer}")
    typer.echo(f"  its key: {signed.key}")


def _refuse_unsent(run: str) -> None:
    """BadSpec while a file holds more of ``run`` than the store does."""
    from joulewise.store import unsent

    left = sorted(unsent.directory().glob(f"{glob.escape(run)}-*"))
    if left:
        raise BadSpec(
            f"not all of run {run} is in the store: {left[0]} holds more of it; try again where that store can be "
            "written, or delete the file"
        )
