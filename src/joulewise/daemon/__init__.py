"""The privileged daemon: lets users turn the knobs of their GPUs, and puts everything back.

Standard library and nvidia-ml-py only, since it runs as root: no numpy, nothing of ``model``. ``server`` talks,
``service`` decides, ``tenure`` lives the lives of leases, ``station`` and ``worker`` call the driver, ``book``
remembers who holds what; ``site``, ``rights``, ``grants``, ``entitled`` and ``pace`` say who may; ``audit`` writes
down who did; ``repair`` gives back with the daemon dead.

``agent`` and its parts are another process, the node's agent of a cluster, which asks the daemon for its leases.
"""
