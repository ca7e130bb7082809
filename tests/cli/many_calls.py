"""Calls the command line many times as an ordinary user, each in a process of its own: ``python -m
tests.cli.many_calls``. Linux and root only.

Reads a list of calls (JSON) from stdin and answers each with a line of JSON. To start an interpreter takes half a
second, to fork one that has loaded all of joulewise some milliseconds; so this process loads, and each call forks. The
child becomes uid 65534 before it calls: nothing that root alone may read is open to it, and that may be the
interpreter's own folder, so what joulewise imports late is loaded here, too.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

NOBODY = 65534
PATIENCE_S = 60
_MEMORY = 2 << 30


def main() -> None:
    import joulewise
    from joulewise.cli import VERBS

    for package in ("cli", "core", "cluster", "device", "model", "monitor", "plan", "report", "serve", "store", "tune"):
        path = [str(Path(joulewise.__file__).parent / package)]
        for module in pkgutil.walk_packages(path, f"joulewise.{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    import encodings

    for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
        if module.name not in ("encodings.mbcs", "encodings.oem"):  # Windows'
            importlib.import_module(module.name)
    for late in ("importlib.readers", "tomllib", "xml.etree.ElementTree"):
        importlib.import_module(late)
    for name, verb in VERBS.items():
        verb.load(name)
    for call in json.load(sys.stdin):
        print(json.dumps(_called(call)), flush=True)


def _called(call: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(call, out.fileno(), err.fileno())
        _, status, used = os.wait4(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))
    return {"code": os.waitstatus_to_exitcode(status), "out": said[0], "err": said[1], "max_kib": used.ru_maxrss}


def _become(call: dict[str, Any], out: int, err: int) -> None:
    """In the child: the user, the folder, the environment; then the call. Never returns."""
    code = 99
    try:
        signal.alarm(PATIENCE_S)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(call["folder"])
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.environ.update(call["environ"])

        from joulewise.cli import main as joulewise

        joulewise(call["args"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
