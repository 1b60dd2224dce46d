"""Plugins of the project's own test suite."""

pytest_plugins = ["pytester"]
