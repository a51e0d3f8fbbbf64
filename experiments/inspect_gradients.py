"""This command is now inspect_gradients.py, beside train.py."""

import sys

if __name__ == '__main__':
  print('experiments.inspect_gradients has moved: python inspect_gradients.py', file=sys.stderr)
  sys.exit(2)
