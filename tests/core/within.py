"""``python -m tests.core.within BYTES VERB…``: joulewise within so much address space; its peak is the last line."""

import json
import resource
import sys

from joulewise.cli import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    try:
        main(sys.argv[2:])
    finally:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"max_kib": peak}), file=sys.stderr)
