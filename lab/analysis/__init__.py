"""In: the files that runs leave behind.

Out: tables, paired statistics, verdicts, and the learning rate selected for each variant.
"""
