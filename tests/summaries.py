"""The summary of an experiment's runs, and the table that the commands print of it."""

import io

from rich.console import Console

from lab.analysis import load_runs
from lab.analysis.summary import summarise
from lab.report import report


def load_summary(experiment, directory):
  return summarise(load_runs.load(experiment, directory))


def rendered_table(summary, width=100):
  file = io.StringIO()
  Console(file=file, width=width).print(report.verdict_table(summary, width))
  return file.getvalue()
