"""Runs `train.py` in the process of the test."""

from absl.testing import flagsaver

import train
from lab.cli.command_line import parse_flags


def run_main(*arguments: str) -> int:
  """Runs the command and returns its exit code."""
  with flagsaver.flagsaver():
    try:
      argv = parse_flags('train.py', ['train.py', *arguments])
    except SystemExit as stop:
      return stop.code
    return train.run_main(argv)
