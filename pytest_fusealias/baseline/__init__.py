"""Saved runs: their file format, where they lie, and how a run is compared with one."""
