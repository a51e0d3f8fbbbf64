"""In: declarations from experiments/, and the config changes that the flags make.

Out: a plan: the list of runs, each with its complete config and its directory.
"""
