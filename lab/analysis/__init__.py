"""In: the files of finished runs.

Out: tables, paired statistics, verdicts, and the learning rate selected for each variant.
"""
