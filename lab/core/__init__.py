"""In: declarations from experiments/, and the changes that flags make to them.

Out: a plan, the list of runs, each with its complete config and its directory.
"""
