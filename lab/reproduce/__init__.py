"""In: reproductions declared in experiments/.

Out: for each published claim its measured values, a verdict and a figure; and one report on all claims.
"""
