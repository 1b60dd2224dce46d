"""Verdicts into text: plain data in, lines out; no torch."""
