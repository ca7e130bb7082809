"""HTTP: recurring jobs asked and told over the network. ``app`` makes the server, ``client`` is its other end.

Nothing is imported here: the client needs the standard library alone, the server the extra ``joulewise[server]``.
"""
