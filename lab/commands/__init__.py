"""In: an experiment and its planned runs.

Out: what train.py was asked for: trained and reported runs, a tuning, a status, an estimate, a comparison.
"""
