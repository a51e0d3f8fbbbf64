"""This command has moved to inspect_gradients.py in the project root."""

import sys

if __name__ == '__main__':
  print('experiments.inspect_gradients has moved: python inspect_gradients.py', file=sys.stderr)
  sys.exit(2)
