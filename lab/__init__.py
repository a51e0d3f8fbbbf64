"""Runs experiments and evaluates them. Each package imports only from those listed before it.

cli  core  launch  analysis  figures  report  commands  reproduce  inspect  benchmark
"""

from lab.figures import matplotlib_defaults

matplotlib_defaults.install()
