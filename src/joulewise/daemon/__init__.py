"""The privileged daemon: lets users turn the knobs of their GPUs, and puts everything back.

Standard library and nvidia-ml-py only, since it runs as root: no numpy, nothing of ``model``. ``server`` talks,
``service`` decides, ``worker`` calls the driver, ``book`` remembers who holds what; ``site``, ``rights``, ``grants`` and
``pace`` say who may; ``audit`` writes down who did.
"""
