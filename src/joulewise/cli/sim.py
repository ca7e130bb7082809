"""``joulewise sim``: virtual GPUs for a command and everything it starts, or for everybody until Ctrl-C.

The command sees them through NVML as it would see real ones, setters included, and keeps its terminal, output,
signals and exit code. Without a command the GPUs stay up, and stdout gets what another shell needs to see them.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import FAILED, child, complain, talk
from joulewise.cli.child import Child, signals_held, signals_let_through
from joulewise.core.errors import BadSpec, GpuLost

if TYPE_CHECKING:
    from joulewise.device.node import RunningNode

_LOOK_S = 1.0
"""How often to see whether the simulator lives."""


class Couple(StrEnum):
    """What can be coupled with virtual GPUs."""

    TORCH = "torch"


def sim(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="The command and its arguments, after --. None: keep the GPUs up.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(metavar="SPEC", help="Virtual GPUs: sim:h200, sim:a100*4, sim:a100*4,h200.")
    ] = "sim:h200",
    speed: Annotated[
        float, typer.Option(metavar="K", help="Seconds they live per second. Other tools than ours need 1.")
    ] = 1.0,
    load: Annotated[
        str | None,
        typer.Option(metavar="WORKLOAD", help="What every GPU runs by itself, or with --couple one step of it."),
    ] = None,
    couple: Annotated[
        Couple | None,
        typer.Option(metavar="torch", help="Do a virtual step at each optimiser step of an unchanged script."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draw each card's sensor errors. Without it they have no gain error."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Without a command: say where they are as JSON.")] = False,
) -> None:
    """Run a command against virtual GPUs that any NVML client can read and set.

    joulewise sim --gpu 'sim:a100*4' --load transformer -- nvitop -1
    joulewise sim --couple torch -- python train.py
    joulewise sim > gpus.env &      # and in another shell:  . ./gpus.env
    """
    with ExitStack() as stack:
        mask = stack.enter_context(signals_held())

        from joulewise.device.couple_torch import DEFAULT_LOAD, environment
        from joulewise.device.node import spawn
        from joulewise.model import workloads

        if load is not None and load not in workloads.library():
            raise BadSpec(f"no workload is called {load!r}; there are {', '.join(workloads.library())}")
        played = None if couple else load
        with signals_let_through():
            node = stack.enter_context(spawn(gpu, speed=speed, load=played, seed=seed))
        environ: Mapping[str, str] = node.environment()
        if couple:
            environ = environment(environ, load or DEFAULT_LOAD)
        if command:
            code = _run(command, environ, mask, node)
            if couple and not talk(ctx).quiet and node.alive():
                _tell_coupled(node, speed, code)
        else:
            _announce(node, environ, speed, as_json=as_json, quiet=talk(ctx).quiet)
            code = _keep_up(node)
    raise typer.Exit(code)


def _run(command: list[str], environ: Mapping[str, str], mask: set[int], node: RunningNode) -> int:
    """The command's exit code, or that of a failure of ours where it saw none."""
    try:
        running = Child(command, environ, mask)
    except OSError as error:
        complain(child.why_not_started(command[0], error))
        return child.exit_code_of(error)
    alive = True
    while True:
        ended = running.wait(_LOOK_S)
        if alive and not node.alive():
            alive = False
            complain("the simulator has ended and its GPUs with it; what the command did since is not simulated")
        if ended is not None:
            return ended or (0 if alive else FAILED)


def _announce(node: RunningNode, environ: Mapping[str, str], speed: float, *, as_json: bool, quiet: bool) -> None:
    """Where the GPUs are: data to stdout, words to stderr."""
    wanted = ("JOULEWISE_VNVML", "LD_LIBRARY_PATH", "PYTHONPATH", "JOULEWISE_AT_IMPORT", "JOULEWISE_COUPLE_LOAD")
    exported = {name: environ[name] for name in wanted if name in environ}
    with node.client() as client:
        gpus = client.gpus
    if as_json:
        where: dict[str, Any] = {"directory": str(node.directory), "pid": node.pid, "speed": speed}
        print(json.dumps({**where, "gpus": gpus, "environment": exported}), flush=True)
    else:
        for name, value in exported.items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
    if not quiet:
        pace = "" if speed == 1 else f", {speed:g} times as fast as the wall"
        names = ", ".join(f"{each['name']} {each['uuid'][:8]}" for each in gpus)
        up = "1 virtual GPU is up" if len(gpus) == 1 else f"{len(gpus)} virtual GPUs are up"
        print(f"{up}{pace}: {names}; Ctrl-C ends it all", file=sys.stderr)


def _keep_up(node: RunningNode) -> int:
    """Wait for a signal to stop. GpuLost if the simulator ends first."""
    while True:
        stop = signal.sigtimedwait(child.PASSED_ON, _LOOK_S)
        if stop is not None:
            return 0
        if not node.alive():
            raise GpuLost("the simulator has ended, its GPUs are gone; start 'joulewise sim' again")


def _tell_coupled(node: RunningNode, speed: float, code: int) -> None:
    """One line if the script was not coupled, or did not keep up. Nothing of the former where it failed: its own error
    says why it took no step."""
    with node.client() as client:
        coupled = client.status()["coupled"]
    if not coupled["steps"]:
        if code == 0:
            complain(
                "no optimiser step was coupled; if the command took some, its Python does not read PYTHONPATH "
                "(python -S, -E and -I do not) or does not use torch.optim"
            )
    elif coupled["late_steps"]:
        complain(
            f"{coupled['late_steps']} of {coupled['steps']} coupled steps took longer than on the virtual GPU, "
            f"which idled {coupled['late_s']:.1f} s for them; '--speed {speed / 2:g}' gives them time"
        )
