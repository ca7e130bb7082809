"""``joulewise cluster agent``: the process on each node that sets GPUs as the cluster's scheduler declares.

It stays in the foreground, for a systemd unit (``packaging/joulewise-agent.service``), and says nothing unless
something is wrong. Everything that it does is ``daemon/agent``; here names become objects.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import complain
from joulewise.cli.leases import Socket
from joulewise.core.errors import BadSpec
from joulewise.daemon.grants import GRANTS
from joulewise.device.lease import Lease

_STATE = Path("/var/lib/joulewise-agent")


def agent(
    node: Annotated[str, typer.Option(metavar="NAME", help="This node as the cluster's engine calls it.")],
    server: Annotated[str, typer.Option(metavar="URL", help="Where 'joulewise cluster up' serves.")],
    token_file: Annotated[
        Path, typer.Option("--token-file", metavar="FILE", readable=False, help="The token for it, closed to others.")
    ],
    socket: Socket = None,
    grants: Annotated[
        Path, typer.Option("--grants", metavar="DIR", readable=False, help="Where prologs put their claims.")
    ] = GRANTS,
    state: Annotated[
        Path, typer.Option("--state", metavar="DIR", readable=False, help="Where accounts are kept over restarts.")
    ] = _STATE,
    host_watts: Annotated[
        float | None,
        typer.Option("--host-watts", metavar="W", help="What the host draws, where its processors do not count it."),
    ] = None,
    period: Annotated[
        float, typer.Option(metavar="S", help="How often to report, until the scheduler says otherwise.")
    ] = 1.0,
) -> None:
    """Set this node's GPUs as the scheduler declares, and count whose joules they draw.

    Needs the daemon on this node, and root's rights there. It takes a lease
    on GPUs that a prolog has claimed for a job ('grant add --claim') and on
    no others, keeps the node below the ceiling that the scheduler declares,
    and goes on with the last word when the scheduler is gone. SIGTERM gives
    everything back. Usually systemd starts it:

      joulewise cluster agent --node $(hostname -s) --server http://head:8746 \\
          --token-file /etc/joulewise/cluster.token
    """
    if host_watts is not None and not 0 <= host_watts < 1e5:
        raise BadSpec(f"--host-watts {host_watts:g} is no power of a host; write watts, such as 350")
    if not 0.05 <= period <= 60:
        raise BadSpec(f"--period {period:g} is not between 0.05 and 60 seconds")
    from joulewise.cluster.declared import Declared, Report
    from joulewise.daemon.agent import Agent
    from joulewise.daemon.agent_host import host_of
    from joulewise.daemon.agent_link import run
    from joulewise.daemon.agent_memory import Memory
    from joulewise.daemon.agent_patience import PatientGpu
    from joulewise.daemon.claims import Claims
    from joulewise.device.discover import find
    from joulewise.device.remote import RemoteLease
    from joulewise.serve.cluster_client import ClusterClient

    def hold(gpus: Sequence[str], knobs: Collection[str], reason: str) -> Lease:
        # Never without the daemon: what a killed agent has set must come back by itself.
        return RemoteLease.take(gpus, knobs, reason=reason, socket=socket)

    client = ClusterClient(server, _token(token_file))

    def exchange(report: Report, wait_s: float) -> Declared:
        return client.exchange(report, wait_s=wait_s)

    made = Agent(
        node,
        [PatientGpu(gpu) for gpu in find("nvml:all")],
        hold=hold,
        claims=Claims(grants),
        host=host_of(host_watts),
        memory=Memory(state),
        now=time.time,
        period_s=period,
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run(made, exchange, stop, complain=complain)


def _token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "no text"
        raise BadSpec(
            f"--token-file {path} cannot be read: {why}; 'joulewise serve token --scope agent --name NODE' makes one"
        ) from None
    if not token:
        raise BadSpec(f"--token-file {path} is empty; 'joulewise serve token --scope agent --name NODE' makes one")
    return token
