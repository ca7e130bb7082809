"""What stands behind ``cluster.engine``: one module (or a few with one name) an engine."""
