"""This command is now reproduce.py, beside train.py."""

import sys

if __name__ == '__main__':
  print('experiments.reproduce has moved: python reproduce.py', file=sys.stderr)
  sys.exit(2)
