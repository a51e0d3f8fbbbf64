"""In: declarations from experiments/, and the config changes of the flags.

Out: a plan: the list of runs, each with its complete config and its directory.
"""
