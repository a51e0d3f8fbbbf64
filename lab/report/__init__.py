"""In: the runs of an experiment, their summary and their figures.

Out: results.csv, summary.json, verdict tables, and report.html in one file.
"""
