"""The simulator process: virtual GPUs in (scaled) wall time, shown through the virtual NVML's shared memory.

It sleeps until something is due: a sensor updates, a clock arrives, a piece of work is done, a client has written or
sent something. However late it wakes, what happened is dated when it happened (``device/news``), so a busy machine
makes readings late, never wrong. It is started by ``device/node``, which also tells it when to end: its standard input
is a lifeline that closes when its starter dies.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.core.knob import Setting
from joulewise.core.timeline import ScaledTime
from joulewise.core.units import milliwatts_from_watts
from joulewise.device import shown
from joulewise.device.desk import Desk
from joulewise.device.virtual import VirtualGpu
from joulewise.device.vnvml_layout import Group, VnvmlState
from joulewise.device.vnvml_values import Knobs
from joulewise.model import catalog, workloads
from joulewise.model.truth import RichLaw

_REWIND_WALL_S = 0.5  # how late news may be; a loaded machine schedules within some 0.1 s
# Between two showings of one GPU, which bounds their cost. In real time sensors update every 20 ms or more rarely.
_SHORTEST_WAIT_S, _SHORTEST_FAST_WAIT_S = 0.01, 0.02
_MOST_SPEED = 1000.0  # one H200 that trains takes a quarter of a core at this speed
_LEAST_LATENCY_S = 50e-6  # a counter call that costs less is not worth imitating

FAULTS = ("lost", "no_permission", "hung", "unsupported", "slow", "mig", "bmc", "foreign", "persistence", "reload")


@dataclass(frozen=True, slots=True)
class Order:
    """What shall be simulated; travels to the process as JSON."""

    models: tuple[str, ...]
    """Keys of the catalogue, one a GPU."""
    speed: float = 1.0
    load: str | None = None
    """A workload that every GPU plays."""
    directory: str | None = None
    seed: int | None = None
    """Draws each card's sensor gain and phases. None: no gain error, phases and UUIDs by chance."""
    cards: int | None = None
    """Draws each GPU as a card of ``model/truth``, which no belief can represent. None: as the catalogue has it."""

    def to_json(self) -> str:
        """For the command line of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The inverse of ``to_json``."""
        values = json.loads(text)
        return cls(**{**values, "models": tuple(values["models"])})


class Simulator:
    """Virtual GPUs as ``order`` says, shown in ``directory``, until ``close``. ``serve`` gives them their time."""

    def __init__(self, order: Order, directory: Path) -> None:
        if not order.speed > 0:
            raise BadSpec(f"speed={order.speed:g} is not above 0; 1 is real time, 20 is twenty times as fast")
        if order.speed > _MOST_SPEED:
            raise BadSpec(f"speed={order.speed:g} is above {_MOST_SPEED:g}, which no processor keeps up with")
        models = [catalog.load(name) for name in order.models]
        # At speed 1, simulated time is the machine's monotonic clock itself.
        start_s = time.monotonic()
        self.clock = ScaledTime(order.speed, origin_s=start_s, wall_origin_s=start_s)
        chance = random.SystemRandom().getrandbits(32)
        laws = [None if order.cards is None else RichLaw(m.chip, order.cards + i) for i, m in enumerate(models)]
        self.gpus = [
            VirtualGpu(
                model if law is None else replace(model, chip=law.card),
                time=self.clock,
                index=index,
                seed=chance if order.seed is None else order.seed,
                law=law,
                gain=law.gain if law is not None else 1.0 if order.seed is None else None,
                rewind_s=_REWIND_WALL_S * order.speed,
            )
            for index, (model, law) in enumerate(zip(models, laws, strict=True))
        ]
        played = [workloads.get(order.load, gpu=model, seed=i) for i, model in enumerate(models) if order.load]
        self.directory = directory
        self._selector = selectors.DefaultSelector()
        self.state = VnvmlState.create(
            self.directory,
            [shown.identity(gpu) for gpu in self.gpus],
            speed=order.speed,
            # As in life only root may set; but then nobody else could use a simulator of their own.
            everyone_may_write=os.geteuid() != 0,
        )
        self.state.publish_time(round(start_s * 1e9), monotonic_ns=round(start_s * 1e9))
        self.desk = Desk(
            self.directory,
            self.gpus,
            self.clock,
            fault=self.fault,
            clear=self.clear,
            load_driver=self._load_driver,
            show=self._look,
        )
        self._heard = [0] * len(self.gpus)
        self._persistent = [True] * len(self.gpus)
        self._loaded = [True] * len(self.gpus)
        self._shown_pids: list[Set[int]] = [frozenset()] * len(self.gpus)
        self._due_wall_s = [0.0] * len(self.gpus)
        for gpu, workload in zip(self.gpus, played, strict=False):
            gpu.play(workload, pid=os.getpid())
        for index in range(len(self.gpus)):
            self.clear(index)
            self._hear(index)
            self._show(index)

    def serve(self, lifeline: int | None = None) -> None:
        """Give the GPUs their time until the descriptor ``lifeline`` ends (None: for ever)."""
        selector, wake, listener = self._selector, self.state.wake, self.desk.listener
        for source in (wake, listener, lifeline):
            if source is not None:
                selector.register(source, selectors.EVENT_READ)
        while True:
            due_wall_s = min(*self._due_wall_s, self.clock.wall_at_s(self.desk.next_s()))
            for key, _ in selector.select(max(0.0, due_wall_s - time.monotonic())):
                if key.fileobj == lifeline:
                    if not os.read(lifeline, 4096):
                        return
                elif key.fileobj is wake:
                    self.state.drain_wake()
                    for index in range(len(self.gpus)):
                        if self._hear(index):
                            self._show(index)
                elif key.fileobj is listener:
                    self.desk.accept(selector)
                elif isinstance(key.fileobj, socket.socket):
                    self.desk.hear(key.fileobj, selector)
            for index, gpu in enumerate(self.gpus):
                if gpu.board.state.residents.keys() != self._shown_pids[index]:
                    self._show(index)  # who comes and goes is seen at once, before anybody is told that work is done
            self.desk.complete(selector)
            self._unload_driver()
            now_wall_s = time.monotonic()
            for index, due_s in enumerate(self._due_wall_s):
                if due_s <= now_wall_s:
                    self._hear(index)
                    self._show(index)

    def fault(self, index: int, kind: str, arguments: Mapping[str, Any]) -> None:
        """Break GPU ``index`` for NVML clients, in one of the ways of ``FAULTS``. Raises BadSpec for another."""
        state = self.state
        groups = [_group(name) for name in arguments.get("groups", ())]
        if kind == "lost":
            state.set_fault(index, lost=True)
        elif kind == "no_permission":
            state.set_fault(index, no_permission=True)
        elif kind == "hung":
            state.set_fault(index, hang=True)
        elif kind == "unsupported":
            state.set_fault(index, unsupported=groups or list(Group))
        elif kind == "slow":
            latency_us = round(float(arguments["seconds"]) * 1e6)
            state.set_fault(index, latency_us=dict.fromkeys(groups or list(Group), latency_us))
        elif kind == "mig":
            state.set_fault(index, mig=bool(arguments.get("on", True)))
        elif kind == "bmc":
            limit_w = arguments["limit_w"]
            self.gpus[index].hold_below(limit_w)
            state.set_fault(index, bmc_limit_mw=0 if limit_w is None else milliwatts_from_watts(limit_w))
        elif kind == "foreign":
            state.write_control(index, **_knobs(Setting(**arguments)))
        elif kind == "persistence":
            state.write_control(index, persistence=bool(arguments["on"]))
        elif kind == "reload":
            if arguments.get("alone"):
                self._reload(index)
            else:
                state.reload_driver()
                for gpu in self.gpus:
                    gpu.reload_driver()
        else:
            raise BadSpec(f"no fault is called {kind!r}; there are {', '.join(FAULTS)}")
        for each in range(len(self.gpus)):
            self._hear(each)
            self._show(each)

    def clear(self, index: int) -> None:
        """GPU ``index`` works again; a counter call costs what it costs on this model."""
        counter_s = self.gpus[index].info.sensors.counter_call_s
        latency_us = dict.fromkeys(Group, 0)
        if counter_s >= _LEAST_LATENCY_S:
            latency_us[Group.ENERGY_COUNTER] = round(counter_s / self.clock.speed * 1e6)
        self.gpus[index].hold_below(None)
        self.state.set_fault(
            index,
            lost=False,
            no_permission=False,
            hang=False,
            mig=False,
            bmc_limit_mw=0,
            unsupported=(),
            latency_us=latency_us,
        )

    def close(self) -> None:
        """The end: every NVML client sees the driver gone, and no file of ours stays."""
        self.desk.close()
        self.state.close()
        self._selector.close()

    def _hear(self, index: int) -> bool:
        """Do what NVML clients have asked of a GPU since we last looked, as of when they asked."""
        control = self.state.read_control(index)
        if control.sequence == self._heard[index]:
            return False
        self._heard[index] = control.sequence
        self._persistent[index] = control.persistence
        self._loaded[index] = True  # somebody has just used it, if only in passing
        gpu = self.gpus[index]
        gpu.ask(shown.demand(control, gpu), self.clock.at_wall_s(control.written_ns / 1e9))
        return True

    def _load_driver(self) -> None:
        """Somebody opens NVML, which attaches to every GPU."""
        for index, loaded in enumerate(self._loaded):
            if not loaded:
                self._loaded[index] = True
                self.gpus[index].reload_driver()  # the counter begins anew
                self._show(index)

    def _unload_driver(self) -> None:
        """Where persistence mode is off, the driver forgets a GPU once no NVML client and no work on it is left."""
        if all(self._persistent) or self.desk.nvml_clients:
            return
        for index, gpu in enumerate(self.gpus):
            used = self._persistent[index] or bool(gpu.board.state.residents)
            if used != self._loaded[index]:
                self._reload(index)
                self._loaded[index] = used
                self._show(index)

    def _reload(self, index: int) -> None:
        """The driver of one GPU starts afresh: its limit is the default, its clocks are free, its counter is at 0."""
        self.state.reset_control(index)
        self._hear(index)
        self.gpus[index].reload_driver()

    def _look(self, index: int) -> None:
        """Somebody wants to see a GPU as it is now, not as it was when its instruments last had something new."""
        self._hear(index)
        self._show(index)

    def _show(self, index: int) -> None:
        """Show what the instruments show now, and find out when they will show something new."""
        gpu = self.gpus[index]
        values = shown.values(gpu)
        self._shown_pids[index] = frozenset(gpu.board.state.residents)
        self.state.publish(index, **values)
        self.state.append_sample(
            index,
            power_mw=values["power_instant_mw"] or 0,
            utilisation_gpu_percent=values["utilisation_gpu_percent"] or 0,
            utilisation_memory_percent=values["utilisation_memory_percent"] or 0,
            sm_mhz=values["sm_mhz"] or 0,
            memory_mhz=values["memory_mhz"] or 0,
        )
        next_s = min(gpu.sensors.next_update_s(gpu.board.time_s), gpu.board.arrival_s)
        wait_s = _SHORTEST_WAIT_S if self.clock.speed <= 1 else _SHORTEST_FAST_WAIT_S
        self._due_wall_s[index] = max(self.clock.wall_at_s(next_s), time.monotonic() + wait_s)


def _group(name: object) -> Group:
    try:
        return Group[str(name).upper()]
    except KeyError:
        known = ", ".join(group.name.lower() for group in Group)
        raise BadSpec(f"no group of calls is named {name!r}; there are {known}") from None


def _knobs(setting: Setting) -> Knobs:
    knobs: Knobs = {}
    if "power_limit_w" in setting:
        knobs["power_limit_mw"] = milliwatts_from_watts(setting["power_limit_w"])
    if "sm_mhz" in setting:
        knobs["sm_lock_mhz"] = (round(setting["sm_mhz"]), round(setting["sm_mhz"]))
    if "memory_mhz" in setting:
        knobs["memory_lock_mhz"] = (round(setting["memory_mhz"]), round(setting["memory_mhz"]))
    return knobs


def main() -> int:
    """Simulate as the first argument of the process says (an Order as JSON); tell on stdout where, or why not."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each client
    order = Order.from_json(sys.argv[1])
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(_home(order.directory))
            simulator = stack.enter_context(closing(Simulator(order, directory)))
        except (JoulewiseError, OSError) as error:
            _tell({"error": type(error).__name__, "message": str(error)})
            return 1
        _tell({"directory": str(simulator.directory), "pid": os.getpid()})
        simulator.serve(sys.stdin.fileno())
    return 0


def _tell(answer: Mapping[str, Any]) -> None:
    """A line for our starter; it may be gone by now (Ctrl-C), and then its lifeline ends us."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


@contextmanager
def _home(named: str | None) -> Iterator[Path]:
    """Where the simulator lives: the directory that it was given, or one of its own that goes when it goes."""
    if named is not None:
        yield Path(named)
        return
    directory = Path(tempfile.mkdtemp(prefix="joulewise-sim-"))
    try:
        if os.geteuid() == 0:
            directory.chmod(0o755)  # other users may look, and work; setting is root's
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
