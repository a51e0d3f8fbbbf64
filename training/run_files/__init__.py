"""In: configs, metrics and training states.

Out: the files of a run directory, written whole or not at all, and read back.
"""
