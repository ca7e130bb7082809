"""GPU 0 measured by joulewise's Monitor, through NVML; speaks as ``other_monitors.py`` does, in our own environment."""

from __future__ import annotations

import json
import sys

from joulewise.monitor import Monitor


def main() -> None:
    """Measure once, from "go" to "stop"."""
    with Monitor("nvml:0") as monitor:
        print("ready", flush=True)
        assert sys.stdin.readline() == "go\n"
        monitor.begin("window")
        assert sys.stdin.readline() == "stop\n"
        report = monitor.end("window")
        print(json.dumps({"joulewise": [report.from_s, report.to_s, report.energy_j]}), flush=True)


if __name__ == "__main__":
    main()
