"""In: runs and summaries from lab/analysis.

Out: matplotlib figures in one style, with titles and captions, saved as PNG, PDF and SVG.
"""
