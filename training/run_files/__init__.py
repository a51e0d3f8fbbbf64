"""In: configs, metrics and training states.

Out: the files of a run directory, written atomically, and read back.
"""
