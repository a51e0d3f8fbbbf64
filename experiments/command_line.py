"""How a command of this folder meets its user: a mistake is one line and exit code 2, not a traceback."""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from training.config import ConfigError, nearest_name


def serve(name: str, main: Callable[[Sequence[str]], int], flag_values: flags.FlagValues) -> None:
  """Parses the flags, runs `main` and exits with the code that it returns.

  Args:
    name: of the module, as in `experiments.reproduce`; opens every message.
    main: may raise ConfigError for what the user could do better.
    flag_values: the command's own flags.
  """
  flags.FLAGS.append_flag_values(flag_values)
  flag_values.mark_as_parsed()  # by way of flags.FLAGS

  def parse(argv: Sequence[str]) -> Sequence[str]:
    try:
      return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
      hint = nearest_name(error.flagname, flags.FLAGS)
      raise SystemExit(refuse(name, f'unknown flag --{error.flagname}{hint}')) from None
    except flags.Error as error:
      raise SystemExit(refuse(name, error)) from None

  def run(argv: Sequence[str]) -> int:
    logging.set_verbosity(logging.WARNING)  # JAX tells of every backend that is not there
    try:
      return main(argv)
    except ConfigError as error:
      return refuse(name, error)
    except KeyboardInterrupt:
      print(f'{name}: stopped', file=sys.stderr)
      return 130

  app.run(run, flags_parser=parse)


def refuse(name: str, error: Exception | str) -> int:
  """Says what is wrong with what was asked for, in one line, and returns the exit code for it."""
  print(f'{name}: {" ".join(str(error).split())}', file=sys.stderr)
  return 2
