"""Requests and commands of another user of this machine: a process with that uid, whose word is the kernel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_ASKS = """
import http.client, json, os, socket, sys
host, port, path, asked = json.loads(sys.argv[1])
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        os.chdir(os.path.dirname(path) or ".")  # the whole path may be longer than a socket's address
        self.sock.connect(os.path.basename(path))
said = []
for method, at, body, headers in asked:
    made = Unix("localhost", timeout=30) if path else http.client.HTTPConnection(host, port, timeout=30)
    if body is not None:
        headers = {"Content-Type": "application/json", **headers}
    try:
        made.request(method, at, None if body is None else json.dumps(body), headers)
        answer = made.getresponse()
        said.append([answer.status, answer.read().decode()])
    except OSError as error:
        said.append([0, type(error).__name__])
    made.close()
print(json.dumps(said))
"""
Request = tuple[str, str, Any, dict[str, str]]
"""Method, path, body, headers."""


def asking(uid: int, to: str, requests: Sequence[Request]) -> list[tuple[int, str]]:
    """Status and body of each answer that a process of ``uid`` gets at ``http://HOST:PORT`` or ``unix:PATH``; status 0
    and the error's name where it cannot connect."""
    path = to.removeprefix("unix:") if to.startswith("unix:") else None
    host, _, port = ("", "", "0") if path else to.removeprefix("http://").rpartition(":")
    words = [sys.executable, "-c", _ASKS, json.dumps([host, int(port), path, requests])]
    said = as_user(uid, words)
    assert said.returncode == 0, said.stderr
    return [(status, body) for status, body in json.loads(said.stdout)]


def as_user(
    uid: int, words: Sequence[str], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command as that user; root's own where ``uid`` is 0."""
    before = [] if uid == 0 else [sys.executable, "-m", "tests.cli.as_someone", str(uid)]
    return subprocess.run(
        [*before, *words],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
