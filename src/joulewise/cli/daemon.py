"""``joulewise daemon``: become the privileged daemon, or print the systemd unit that starts it.

The daemon is another program (``python -m joulewise.daemon``), which loads none of what the command line does: this
verb turns into it and is gone.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import say
from joulewise.core.errors import BadSpec, NotPermitted
from joulewise.device import nvml_library


def daemon(
    ctx: typer.Context,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", readable=False, help="Where it listens. Default: /run/joulewise/daemon.sock."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="What was there before leases. Default: /var/lib/joulewise."),
    ] = None,
    grants: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="Where grants are. Default: /run/joulewise/grants."),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Who did what. Default: /var/log/joulewise/audit.jsonl."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="The site's rules. Default: /etc/joulewise/site.toml, if there."
        ),
    ] = None,
    socket_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Who may connect at all, as chmod writes it: 660 is root and the socket's group. Default: 666, "
            "everybody; what each may set, rules and grants decide.",
        ),
    ] = None,
    ready_fd: Annotated[
        int | None, typer.Option(metavar="FD", help="Write a line to this descriptor, and close it, once it serves.")
    ] = None,
    print_unit: Annotated[
        bool, typer.Option("--print-unit", help="Print the systemd unit for this installation, and do nothing else.")
    ] = False,
) -> None:
    """Hold the leases of this node: set clocks and limits for users who may, and put them back.

    Needs root on real GPUs. It stays in the foreground; SIGTERM ends all
    leases and then it, SIGHUP reads the site's rules again. Usually systemd
    starts it:

      joulewise daemon --print-unit > /etc/systemd/system/joulewise.service
      systemctl daemon-reload && systemctl enable --now joulewise

    To try it on virtual GPUs, in a folder of your own:

      joulewise sim -- joulewise daemon --socket ./d.sock --state ./state \\
          --grants ./grants --audit ./audit.jsonl
    """
    folders = {"--socket": socket, "--state": state, "--grants": grants, "--audit": audit}
    flags = {**folders, "--site": site, "--socket-mode": socket_mode, "--ready-fd": ready_fd}
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    if print_unit:
        if given:
            raise BadSpec(f"--print-unit goes with no other flag, not with {given[0]}; edit the unit's ExecStart= line")
        from joulewise.cli import unit

        python, needed = unit.here()
        made = unit.made_for(python, needed)
        if reason := unit.closed([python, *needed]):
            raise BadSpec(f"the service could not start from here: {reason}; install joulewise in /opt/joulewise, say")
        typer.echo(made, nl=False)
        if reason := unit.untrusted([python, *needed]):
            say(ctx, f"whoever may change what the unit starts is as good as root; {reason}")
        return
    if socket_mode is not None and not re.fullmatch("[0-7]{3,4}", socket_mode):
        raise BadSpec(f"--socket-mode {socket_mode!r} is no mode as chmod writes it; write 666 or 660")
    if os.geteuid() != 0:
        _refuse_without_root([flag for flag, path in folders.items() if path is None])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "joulewise.daemon", *given])


def _refuse_without_root(unnamed: list[str]) -> None:
    """NotPermitted where a user's daemon could set nothing, or would want folders of root's."""
    if not nvml_library.is_virtual():
        raise NotPermitted("the daemon needs root, since the driver lets nobody else set clocks and limits; use 'sudo'")
    if unnamed:
        raise NotPermitted(
            f"without root, a daemon of virtual GPUs keeps its files in a folder of yours; name {', '.join(unnamed)}"
        )
