"""What a user's doctor says, as JSON: ``python -m tests.cli.examined UID STATE GPU…``, as root; the user works on these
GPUs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from joulewise.cli.checkup import examine
from joulewise.device.work import Link


def main() -> None:
    uid, state, *mine = sys.argv[1:]
    # Everything is loaded as root, since another user may not be able to read the interpreter's files.
    examine()
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    link = Link(os.environ["JOULEWISE_VNVML"])
    for gpu in mine:
        link.work((0.001, 0.5, 100.0), int(gpu))
    print(json.dumps(examine(state=Path(state)).as_json()))


if __name__ == "__main__":
    main()
