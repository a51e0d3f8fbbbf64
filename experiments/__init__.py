"""Experiments and reproductions, declared in one file each."""

from lab.figures import matplotlib_defaults

matplotlib_defaults.install()
