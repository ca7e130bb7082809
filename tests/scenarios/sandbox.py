"""A command inside what ``joulewise.service`` allows, on a machine where systemd does not run. Root and Linux only.

    python tests/scenarios/sandbox.py UNIT WRITABLE_DIR… -- COMMAND…

Taken from the unit and enforced by the kernel: CapabilityBoundingSet=, NoNewPrivileges=, MemoryDenyWriteExecute= (by
PR_SET_MDWE, stricter than systemd's filter), SystemCallFilter= (with systemd's own lists), PrivateNetwork=,
PrivateIPC=, ProtectHostname=, ProtectSystem=strict with only WRITABLE_DIRs (and /dev, /proc, /sys as they are) open,
UMask=, LimitNOFILE=. Not enforced: DevicePolicy= and the rest, which need systemd or are refinements of the above.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

# linux/prctl.h, linux/seccomp.h, linux/sched.h, sys/mount.h
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 23, 24, 22, 38, 65
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
CAPABILITIES = {"CAP_SYS_ADMIN": 21}
AUDIT_ARCH_X86_64 = 0xC000003E
ALLOW, ERRNO_EPERM = 0x7FFF0000, 0x00050001
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of the unit's [Service], each with all its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def system_calls(names: str) -> set[str]:
    """What a list such as ``@system-service ioctl`` stands for, as systemd expands it."""
    calls: set[str] = set()
    for name in names.split():
        if name.startswith("@"):
            shown = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True)
            listed = [line.strip() for line in shown.stdout.splitlines()[1:] if not line.strip().startswith("#")]
            calls |= system_calls(" ".join(listed))
        else:
            calls.add(name)
    return calls


def allowed_calls(filters: list[str]) -> set[str]:
    """The system calls that SystemCallFilter= lines leave."""
    allowed = system_calls("@default")  # systemd always lets these through
    for line in filters:
        allowed = allowed - system_calls(line[1:]) if line.startswith("~") else allowed | system_calls(line)
    return allowed


def filter_program(calls: set[str]) -> bytes:
    """A seccomp program that lets ``calls`` of x86-64 through and answers EPERM to all others."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header)}

    def step(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    program = step(LOAD, 4) + step(JUMP_IF_EQUAL, AUDIT_ARCH_X86_64, 1, 0) + step(RETURN, ERRNO_EPERM) + step(LOAD, 0)
    for name in sorted(calls & numbers.keys()):
        program += step(JUMP_IF_EQUAL, numbers[name], 0, 1) + step(RETURN, ALLOW)
    return program + step(RETURN, ERRNO_EPERM)


def _must(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, *arguments: object) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    _must(_libc.prctl(option, *(ctypes.c_ulong(each) if isinstance(each, int) else each for each in padded)), "prctl")


def _mount(where: str, flags: int, what: str | None = None) -> None:
    source = None if what is None else what.encode()
    _must(_libc.mount(source, where.encode(), None, ctypes.c_ulong(flags), None), f"mount {where}")


def _read_only_but(writable: list[str]) -> None:
    """Everything read-only except these folders and what the kernel shows as files."""
    _mount("/", MS_REC | MS_PRIVATE)
    for folder in writable:
        _mount(folder, MS_BIND, folder)
    kept = ("/dev", "/proc", "/sys", *writable)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        where = line.split()[4]
        if not any(where == folder or where.startswith(folder + "/") for folder in kept):
            _mount(where, MS_BIND | MS_REMOUNT | MS_RDONLY)


def enter(service: dict[str, list[str]], writable: list[str]) -> None:
    """Put this process, and what it becomes, into the sandbox."""
    program = filter_program(allowed_calls(service["SystemCallFilter"]))
    _must(_libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET), "unshare")
    if service["ProtectSystem"] == ["strict"]:
        _read_only_but(writable)
    os.umask(int(service["UMask"][0], 8))
    files = int(service["LimitNOFILE"][0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    kept = {CAPABILITIES[name] for name in service["CapabilityBoundingSet"][0].split()}
    for capability in range(64):
        if capability not in kept and _libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _prctl(PR_CAPBSET_DROP, capability)
    if service["NoNewPrivileges"] == ["yes"]:
        _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if service["MemoryDenyWriteExecute"] == ["yes"]:
        _prctl(PR_SET_MDWE, 1)
    filtered = _Filter(len(program) // 8, program)
    _prctl(PR_SET_SECCOMP, 2, ctypes.byref(filtered))


def main() -> None:
    """Enter the sandbox and become the command."""
    split = sys.argv.index("--")
    enter(unit(Path(sys.argv[1])), sys.argv[2:split])
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])


if __name__ == "__main__":
    main()
