"""In: runs and summaries, as read by lab/analysis.

Out: matplotlib figures in one style, saved with the numbers they were drawn from.
"""
