"""``python -m tests.core.within BYTES VERB…``: joulewise within so much address space; its peak is the last line."""

import json
import resource
import sys
from pathlib import Path

from joulewise.cli import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    try:
        main(sys.argv[2:])
    finally:
        # Not ru_maxrss, which counts the process that started this one, too.
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
        print(json.dumps({"max_kib": peak}), file=sys.stderr)
