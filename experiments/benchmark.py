"""This command has moved to lab/benchmark."""

import sys

if __name__ == '__main__':
  print('experiments.benchmark has moved: python -m lab.benchmark', file=sys.stderr)
  sys.exit(2)
