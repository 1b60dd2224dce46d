"""Measurements of a program in eager and compiled."""
