"""Crash points of a lease, one after another: ``python -m tests.device.crash_trials KIND STATE [VISITS [POINTS]]``.

A program of its own, in the environment of a simulator with one GPU. For n = 1, 2, … a forked child takes a lease,
applies, applies again and releases, and is killed at the n-th line of the engine; then the file is replayed, and what
the simulator's memory shows is held against what it showed before. It ends with the first child that lives; with
``POINTS``, and without ``TESTS=all``, only so many n are tried (``tests.tiers.sample``). ``KIND``
is "none", "baseline" or "standing": where clocks belong; or "replay": the process that gives back dies, too; or
"stand": an admin lets a clock stand, and no more, and then it is where the file says. The rescuer knows no baseline.
Each line is tried the first ``VISITS`` times that it runs (1). Prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from pathlib import Path

from joulewise.core.knob import Setting
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Owner
from joulewise.device.local import LocalLease
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.rescue import rescue
from joulewise.device.saved import Saved
from joulewise.device.vnvml_layout import ENVIRONMENT, VnvmlState
from tests.crashing import Crash
from tests.tiers import ALL, sample

VISITS = int(sys.argv[3]) if len(sys.argv) > 3 else 1
POINTS = int(sys.argv[4]) if len(sys.argv) > 4 and not ALL else None
KNOBS = ("sm_mhz", "memory_mhz", "power_limit_w")
LIMIT_MW = 612_345
"""Not the vendor's default, and not a whole watt."""


def lease(state: Path, baseline: Setting, uuid: str) -> None:
    """What dies: a whole life of a lease, as a client has it."""
    taken = LocalLease.take([NvmlControls(uuid)], KNOBS, state=state, baseline=baseline, guard=False)
    taken.apply(Setting(sm_mhz=1200, memory_mhz=2201, power_limit_w=300))
    taken.apply(Setting(sm_mhz=900, power_limit_w=412.5))
    taken.release()


def stand(state: Path, uuid: str) -> None:
    """What dies: an admin's wishes."""
    saved = Saved.open(state, uuid)
    keeper = Keeper(NvmlControls(uuid), saved)
    for value in (1650.0, 1200.0, None):
        keeper.stand("sm_mhz", value)
    saved.close()


def replay(state: Path, uuid: str) -> list[str]:
    """What the next process does."""
    return [each.ending for each in rescue(state, uuid, controls=NvmlControls(uuid))]


def stands(state: Path, uuid: str) -> tuple[int, int] | None:
    """Where the file says that the SM clock stands."""
    saved = Saved.open(state, uuid)
    value = saved.standing.get("sm_mhz")
    saved.close()
    return None if value is None else (345, int(value))


def in_child(act: object, n: int, *arguments: object) -> tuple[bool, str]:
    """Let a forked child do ``act`` and die at its n-th line; whether it lived, and where it died."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        code = 1
        try:
            with Crash(n, report=f"/proc/self/fd/{writes}", visits=VISITS):
                act(*arguments)  # type: ignore[operator]
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads) as report:
        points = report.read().splitlines()
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the child failed by itself at n = {n}")
    return os.WIFEXITED(status), points[-1] if points else ""


def main() -> None:
    """The program: see above."""
    kind, state = sys.argv[1], Path(sys.argv[2])
    seen = VnvmlState.open(os.environ[ENVIRONMENT])
    controls = NvmlControls.all()[0]
    uuid = controls.uuid
    baseline = Setting(sm_mhz=1500) if kind in ("baseline", "replay") else Setting()
    if kind == "standing":
        saved = Saved.open(state, uuid)
        Keeper(controls, saved).stand("sm_mhz", 1650.0)
        saved.close()
    declared_mhz = {"baseline": (345, 1500), "replay": (345, 1500), "standing": (345, 1650)}
    base_mhz: tuple[int, int] | None = declared_mhz.get(kind)

    def shown() -> tuple[object, ...]:
        words = seen.read_control(0)
        return words.power_limit_mw, words.sm_lock_mhz, words.memory_lock_mhz

    trials, modified, wrong = 0, 0, []

    def trial(n: int) -> tuple[bool, str]:
        """Somebody dies at line ``n`` (0: lives), and the next one comes; whether they lived, and their last line."""
        nonlocal trials, modified, base_mhz
        seen.write_control(0, power_limit_mw=LIMIT_MW, sm_lock_mhz=base_mhz, memory_lock_mhz=None)
        if kind == "replay":
            # A lease that was killed with everything set; then its rescuer dies at line n, and a second one comes.
            saved = Saved.open(state, uuid)
            keeper = Keeper(controls, saved, baseline=baseline)
            keeper.replay()
            keeper.take(KNOBS, Owner("lease", 0, os.getpid()))
            keeper.apply(Setting(sm_mhz=1200, memory_mhz=2201, power_limit_w=300), KNOBS)
            saved.close()
            lived, where = in_child(replay, n, state, uuid)
        elif kind == "stand":
            lived, where = in_child(stand, n, state, uuid)
        else:
            lived, where = in_child(lease, n, state, baseline, uuid)
        trials += 1
        modified += shown() != (LIMIT_MW, base_mhz, None)
        endings = replay(state, uuid)
        if kind == "stand":
            base_mhz = stands(state, uuid)
        if shown() != (LIMIT_MW, base_mhz, None):
            wrong.append({"at": where, "shows": shown(), "should": (LIMIT_MW, base_mhz, None), "endings": endings})
        if Saved.known(state) and stands(state, uuid) is None:
            wrong.append({"at": where, "left": Saved.known(state)})
        if replay(state, uuid):
            wrong.append({"at": where, "second replay did something": True})
        return lived, where

    lines = int(trial(0)[1].split()[0])
    if POINTS is None:
        lines = next(n for n in itertools.count(1) if trial(n)[0]) - 1
    else:
        for n in sample(range(1, lines + 1), POINTS, of=f"crash points {kind}"):
            trial(n)
        trial(0)  # or the GPU's lock would tell the next one of a folder that will be gone
    seen.close()
    print(json.dumps({"lines": lines, "trials": trials, "modified": modified, "wrong": wrong}))


if __name__ == "__main__":
    main()
