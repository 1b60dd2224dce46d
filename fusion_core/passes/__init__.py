"""Rewrites of the aten graph, one per file; each returns a new graph and leaves its argument as it was."""
