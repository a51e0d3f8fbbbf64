"""Experiments and reproductions, one declaration a file."""

from lab.figures import matplotlib_defaults

matplotlib_defaults.install()
