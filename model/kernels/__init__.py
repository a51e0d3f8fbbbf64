"""Implementations chosen for speed or memory, each equivalent to a plain definition.

In: arrays, and the linear layers of a branch. Out: what the plain definition returns, up to rounding.
"""
