"""A training of a few tenths of a second: tells a metric each epoch, and behaves as its first argument says.

epochs.py HOW BATCH_SIZE [WHERE]        val_acc is epochs / 10, or worse at large batch sizes
"""

from __future__ import annotations

import math
import signal
import sys
import time
from pathlib import Path

import joulewise

EPOCH_S = 0.05


def main(how: str, batch_size: int, where: Path) -> None:
    with (where / "ran").open("a") as file:
        file.write(f"{batch_size}\n")
    if how == "crash":
        raise SystemExit(7)
    if how == "out-of-memory" and batch_size > 16:
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr)
        raise SystemExit(1)
    if how == "checkpoint":
        signal.signal(signal.SIGTERM, lambda *_: checkpoint(where))
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for epoch in range(1, 200):
        time.sleep(EPOCH_S)
        val_acc = math.nan if how == "nan" or (how == "once-nan" and epoch == 1) else epoch / 10
        if how == "never" or (how == "only-small" and batch_size > 16):
            val_acc = 0.1
        match how:
            case "prints":
                print(f"epoch {epoch} of many | val_acc={val_acc} loss=1.0")
            case "misspelt":
                joulewise.metric(epoch=epoch, val_accuracy=val_acc, loss=1.0)
            case "other":
                joulewise.metric(epoch=epoch, loss=1.0)
            case "silent":
                if epoch == 5:
                    return
            case _:
                joulewise.metric(epoch=epoch, val_acc=val_acc)
        if how in ("asks", "misspelt", "other") and joulewise.should_stop():
            (where / "saved").write_text(str(epoch))
            return
        if how == "ends" and epoch == 2:
            return
        if how == "waits" and epoch == 2:
            print("waiting", flush=True)
            time.sleep(60)


def checkpoint(where: Path) -> None:
    (where / "saved").write_text("checkpoint")
    raise SystemExit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3] if len(sys.argv) > 3 else "."))
