"""In: the paths of text files, or the name of a synthetic task.

Out: batches of token sequences, the same at a given step for any number of processes.
"""
