"""Runs experiments and evaluates them. Each package is a step that imports only from packages before it.

cli  core  launch  analysis  figures  report  commands  reproduce  inspect  benchmark
"""

from lab.figures import matplotlib_defaults

matplotlib_defaults.install()
