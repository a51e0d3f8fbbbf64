"""Implementations chosen for speed or memory, each beside the plain definition that it agrees with.

In: arrays, and the linear layers of a branch. Out: what the plain definition returns, up to rounding.
"""
