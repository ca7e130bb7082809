"""``python -m joulewise`` is ``joulewise``."""

from joulewise.cli import main

main()
