"""What a site must know of one GPU before anybody trusts a setting on it: the truths that spoil settings silently.

Persistence mode off, a cap that somebody left behind, a board controller that holds power below what was asked for, a
lock of the clocks, another user on the GPU. Each comes with what to do. Nothing is written here.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from contextlib import suppress

from joulewise.cli.control import Control
from joulewise.cli.finding import Finding
from joulewise.core.errors import JoulewiseError
from joulewise.daemon.peer import real_uid
from joulewise.daemon.rights import Seen
from joulewise.device.controls import LIMIT, Controls
from joulewise.device.nvml import NvmlGpu
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.watch import Watch
from joulewise.report.knobs import ROUNDING

_RESTORE = "as root: 'joulewise restore'"


def truths(gpu: NvmlGpu, control: Control, seen: Seen) -> list[Finding]:
    """What is to be said of this GPU; nothing of what is as it should be."""
    try:
        controls = NvmlControls(gpu.info.uuid)
    except JoulewiseError:
        return []  # a GPU that is lost says so where it is measured
    return set_silently(controls, control, gpu.info.index) + shared(seen, os.geteuid())


def set_silently(controls: Controls, control: Control, index: int) -> list[Finding]:
    """What is set on a GPU, or takes settings away, without anybody being told; ``index`` is the driver's number."""
    found: list[Finding] = []
    with suppress(JoulewiseError):
        for look in (_persistence, _cap, _enforced, _lock):
            found += look(controls, control, index)
    return found


def see(gpu: NvmlGpu) -> Seen:
    """Whose processes run on it, and whether it is cut into slices."""
    try:
        pids = gpu.processes()
    except JoulewiseError:
        pids = None
    mig = any(note.startswith("MIG is on") for note in gpu.info.notes)
    if pids is None:
        return Seen(None, mig)
    # A process that cannot be seen from here is gone, or in another pid namespace.
    return Seen(tuple((pid, -1 if (uid := real_uid(pid)) is None else uid) for pid in pids), mig)


def shared(seen: Seen, uid: int) -> list[Finding]:
    """What one sets on a shared GPU, all get: read only for users, and for root to know. Root asks for several."""
    users = {user for _, user in seen.processes or ()}
    if not users - {uid} or (uid == 0 and len(users) == 1):
        return []
    others = _names(users - {uid})
    if uid == 0:
        return [Finding("shared", None, f"root may set it, but it hits {others}")]
    says = f"shared with {others}: read only, since a setting would hit them too"
    return [Finding("shared", None, says, "set it when it is yours alone; ask your scheduler for a whole GPU")]


def _persistence(controls: Controls, _: Control, __: int) -> list[Finding]:
    if controls.persistence() is not False or not controls.space.knobs:
        return []
    says = "off: settings vanish when the last program leaves the GPU"
    return [
        Finding("persistence", None, says, "as root: 'nvidia-smi -pm 1'; or persistence = \"set\" in the site file")
    ]


def _cap(controls: Controls, control: Control, index: int) -> list[Finding]:
    limit_w, default_w = controls.value(LIMIT), controls.default_limit_w
    if limit_w is None or default_w is None:
        return []
    says = f"limited to {limit_w:g} W of its usual {default_w:g} W"
    holder = control.holder(controls.uuid, LIMIT)
    if holder is not None and holder.wrote is not None and abs(limit_w - holder.wrote) > ROUNDING:
        says += f", where a lease of {holder.who} has set {holder.wrote:g} W: somebody else has changed it"
        return [Finding("power cap", None, says, "find out who; when the lease ends, theirs stays")]
    if limit_w >= default_w - ROUNDING:
        return []
    if holder is not None:
        by = "by" if holder.wrote is not None else "as it was before"
        return [Finding("power cap", True, f"{says} {by} a lease of {holder.who}")]
    if controls.uuid in control.owed:
        return [Finding("power cap", None, f"{says}, perhaps by a joulewise that is gone", _RESTORE)]
    by_hand = f"'nvidia-smi -i {index} -pl {default_w:g}'"
    if not control.sure:
        says += f", perhaps by joulewise: {_unknown(control)}"
        return [Finding("power cap", None, says, f"as root: first 'joulewise restore'; if it stays, {by_hand}")]
    do = f"if it is nobody's, as root: {by_hand}"
    return [Finding("power cap", None, f"{says}, and no lease of joulewise holds it: left behind?", do)]


def _enforced(controls: Controls, _: Control, __: int) -> list[Finding]:
    limit_w, enforced_w = controls.value(LIMIT), controls.enforced_limit_w()
    if limit_w is None or enforced_w is None or enforced_w >= limit_w - ROUNDING:
        return []
    says = f"{enforced_w:g} W are in force, below the {limit_w:g} W asked for: the board's controller (BMC) holds it"
    return [Finding("power cap", None, says, "ask whoever runs the machine's BMC; no setting here can raise it")]


def _lock(controls: Controls, control: Control, index: int) -> list[Finding]:
    """Locks cannot be read. One that holds the clock down is seen while the GPU is busy, and only then."""
    notice = Watch(controls).locked_by_others()
    baseline = None if control.policy is None else control.policy.baseline(controls.uuid).get("sm_mhz")
    if notice is None or notice.found is None or baseline is not None:
        return []
    says = f"{notice.found:g} of {controls.space.knobs['sm_mhz'].high:g} MHz under load"
    holder = control.holder(controls.uuid, "sm_mhz")
    if holder is not None:
        return [Finding("clock lock", True, f"{says}, by a lease of {holder.who}")]
    standing = control.standing(controls.uuid, "sm_mhz")
    if standing is not None:
        return [Finding("clock lock", True, f"{says}, by the lock of {standing:g} MHz that 'joulewise stand' keeps")]
    if controls.uuid in control.owed:
        return [
            Finding("clock lock", None, f"{says}: locked, perhaps by a joulewise that is gone (inferred)", _RESTORE)
        ]
    by_hand = f"'nvidia-smi -i {index} -rgc'"
    if not control.sure:
        says += f", neither heat nor power: locked (inferred), perhaps by joulewise: {_unknown(control)}"
        return [Finding("clock lock", None, says, f"as root: first 'joulewise restore'; if it stays, {by_hand}")]
    says += ", neither heat nor power: somebody has locked it (inferred)"
    return [Finding("clock lock", None, says, f"if it is nobody's, as root: {by_hand}")]


def _unknown(control: Control) -> str:
    """Why we cannot tell whether joulewise has set something."""
    return "no daemon answers" if control.daemon is None else "its files are root's to read"


def _names(users: Iterable[int]) -> str:
    return ", ".join(_name(uid) for uid in sorted(users))


def _name(uid: int) -> str:
    if uid < 0:
        return "somebody who cannot be seen from here"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
