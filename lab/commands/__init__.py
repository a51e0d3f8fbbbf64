"""In: the flags of train.py.

Out: what they request: trained and reported runs, a tuning, a status, an estimate or a comparison.
"""
