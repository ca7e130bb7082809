"""A job of ``bench.cluster cap``: keeps virtual GPUs of one node or several busy until it is told to end.

    python -m bench.cluster_cap_load FOLDER PIECE_S SM_SHARE DYNAMIC_W DIRECTORY:0,1 …

Each GPU does pieces of work one after the other; a step is done when every GPU has done its piece, and is counted in
the progress file of FOLDER (``cluster/progress``). It goes on from the step that it finds there.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from joulewise.cluster.progress import Progress, read, write
from joulewise.device.work import Link

_WRITE_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Until SIGTERM."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    folder, piece_s, sm_share, dynamic_w = Path(words[0]), float(words[1]), float(words[2]), float(words[3])
    gpus = []
    for word in words[4:]:
        directory, _, numbers = word.rpartition(":")
        gpus += [(directory, int(number)) for number in numbers.split(",")]
    before = read(folder)
    done = [0] * len(gpus)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def work(at: int) -> None:
        directory, gpu = gpus[at]
        link = Link(directory)
        while not stop.is_set():
            link.work([(piece_s, sm_share, dynamic_w)], gpu)
            done[at] += 1

    for at in range(len(gpus)):
        threading.Thread(target=work, args=(at,), daemon=True).start()
    first, starts = (0, 1) if before is None else (before.step, before.starts + 1)
    while not stop.wait(_WRITE_S):
        step = first + min(done)
        write(folder, Progress(step, None, step, time.time(), len(gpus), False, starts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
