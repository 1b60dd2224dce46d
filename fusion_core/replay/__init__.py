"""Replay of whole plans as CUDA graphs."""
