"""This command has moved to reproduce.py in the project root."""

import sys

if __name__ == '__main__':
  print('experiments.reproduce has moved: python reproduce.py', file=sys.stderr)
  sys.exit(2)
