"""The cluster floor's six questions, one word each:

    python -m bench.cluster fidelity [--json]                       do the baselines reproduce their published figures?
    python -m bench.cluster models [--json]                         how well are throughput and energy predicted?
    python -m bench.cluster energy --trace FILE… [--json]           how much shorter are jobs at equal energy?
    python -m bench.cluster speed [--json]                          how long does a decision take?
    python -m bench.cluster cap [--json]                            how soon, and at what cost, is a cap kept?
    python -m bench.cluster slurm [--json]                          does a real Slurm do what the simulator says?

Each has its own options (``python -m bench.cluster energy --help``) and its own file, ``bench/cluster_<word>.py``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

QUESTIONS = ("fidelity", "models", "energy", "speed", "cap", "slurm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand over to the question that the first word names; 2 where it names none."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if not words or words[0] not in QUESTIONS:
        said = f"{words[0]!r} is not one of" if words else "say one of"
        print(f"bench.cluster: {said} {', '.join(QUESTIONS)}; see --help", file=sys.stderr)
        return 2
    answer: int = importlib.import_module(f"bench.cluster_{words[0]}").main(words[1:])
    return answer


if __name__ == "__main__":
    sys.exit(main())
