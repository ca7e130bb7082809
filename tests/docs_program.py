"""``joulewise`` for a shell, without the start of an interpreter that has to import it: for ``docs_desk``.

A shell starts this file, which imports next to nothing: ``docs_program.py SOCKET WORDS``. It hands its streams,
environment and folder to the test process, which has ``tests.preloaded`` fork the command; passes on the signals that
it gets; and ends as the command does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    asked = {"words": sys.argv[2:], "environ": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - loads less
    body = json.dumps(asked).encode()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # until there is somebody to pass them on to
    socket.send_fds(connection, [len(body).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(body)
    pid = int.from_bytes(connection.recv(8), "big")
    for number in ENDINGS:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    code = int.from_bytes(connection.recv(8), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
