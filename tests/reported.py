"""What is said of the runs in a folder, as a summary and as the table that is printed."""

import io

from rich.console import Console

from lab.analysis import load_runs
from lab.analysis.summary import summarise
from lab.report import report


def findings(experiment, directory):
  return summarise(load_runs.load(experiment, directory))


def printed(summary, width=100):
  file = io.StringIO()
  Console(file=file, width=width).print(report.summary_table(summary, width))
  return file.getvalue()
