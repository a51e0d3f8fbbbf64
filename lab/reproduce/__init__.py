"""In: reproductions declared in experiments/.

Out: measured.json, a verdict on each published claim, its figure, and one report of all of them.
"""
