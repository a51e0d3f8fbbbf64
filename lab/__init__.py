"""Turns experiments into runs, and runs into knowledge; a room a step, and each imports from those above it alone.

cli  core  launch  analysis  figures  report  commands  reproduce  inspect  benchmark
"""

from lab.figures import matplotlib_defaults

matplotlib_defaults.install()
