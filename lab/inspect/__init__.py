"""In: a trained run or a config.

Out: gradient norms by layer, parameter and path (skip, branch), as a table, files and figures.
"""
