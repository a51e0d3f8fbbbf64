"""The parts that all commands share: parsing flags, printing to a console, and reporting each error in one line."""

import codecs
import functools
import sys
from collections.abc import Callable

from absl import app, flags, logging
from rich.console import Console

from lab.cli import help_text, signals
from lab.cli.flag_hints import flag_hint
from lab.cli.output_errors import ignore_output_errors
from training.cache import enable_compilation_cache
from training.config import ConfigError
from training.files import SaveFailed
from training.paths import printable
from training.run_files.locks import Moved

WIDTH = 100  # columns if the output is not a terminal
MIN_WIDTH = 20  # columns; a smaller width reported by a terminal is ignored
# Replacements if the encoding of the output lacks these characters.
ASCII = {'±': '+-', '×': 'x', '−': '-', '–': '-', '→': '->', '←': '<-', '█': '#'}  # noqa: RUF001


def new_console() -> Console:
  """Returns the console of a command. It prints names and paths literally, without markup, in any encoding."""
  codecs.register_error('ascii_replacements', _replace)
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, 'reconfigure'):  # an io.TextIOWrapper, or a wrapper of one
      stream.reconfigure(errors='ascii_replacements')
  console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, emoji=False, highlight=False)
  if console.width < MIN_WIDTH:  # some terminals report 0, with which nothing would be printed
    console.width = WIDTH
  return console


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
  """Replaces a character that cannot be encoded: by ASCII, a partial bar by a space, others by their code points."""
  assert isinstance(error, UnicodeEncodeError)
  character = error.object[error.start]
  if character in ASCII:
    return ASCII[character], error.start + 1
  if '▁' <= character <= '▟':
    return ' ', error.start + 1
  rest = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
  return codecs.backslashreplace_errors(rest)


def run_command(name: str, main: Callable[[Console], int], command_flags: flags.FlagValues | None = None) -> None:
  """Runs a command: parses the flags, calls `main` and exits with the code that it returns.

  It exits with code 2 after a user error and with code 1 after a file-system error; either is reported in one line.

  Args:
    name: the name of the command, for messages.
    main: does the work of the command, and prints to the console that it receives.
    command_flags: the flags of a command that defines them separately from absl's, because other commands have flags
      of the same name.
  """
  if command_flags is not None:
    flags.FLAGS.append_flag_values(command_flags)
    command_flags.mark_as_parsed()  # they are parsed as part of flags.FLAGS

  def guarded(argv: list[str]) -> int:
    del argv
    ignore_output_errors(name)
    signals.interrupt_on_sigint()
    logging.set_verbosity(logging.WARNING)  # JAX logs every backend that it does not find
    enable_compilation_cache()
    try:
      return main(new_console())
    except ConfigError as error:
      return report_error(name, error)
    except (SaveFailed, Moved, OSError) as error:
      failed = error if isinstance(error, (SaveFailed, Moved)) else SaveFailed(error.filename or 'a file', error)
      print(f'{name}: {failed}', file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print(f'{name}: stopped', file=sys.stderr)
      return 130

  app.run(guarded, flags_parser=functools.partial(parse_flags, name, command_flags=command_flags))


def parse_flags(name: str, argv: list[str], command_flags: flags.FlagValues | None = None) -> list[str]:
  """Parses the command line of a command, which must consist of flags.

  Raises:
    SystemExit: with code 2 after an error, which is reported in one line; with code 0 after --help or --helpfull.
  """
  text = help_text.requested_help(argv, command_flags)
  if text is not None:
    ignore_output_errors(name)
    print(text)
    raise SystemExit(0)
  try:
    rest = flags.FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    hint = flag_hint(error.flagname, flags.FLAGS)
    raise SystemExit(report_error(name, f'unknown flag --{printable(error.flagname)}{hint}')) from None
  except flags.Error as error:
    raise SystemExit(report_error(name, error)) from None
  if rest[1:]:
    raise SystemExit(
      report_error(name, f'unexpected argument {rest[1]!r}: every argument must be a flag, --name=value')
    )
  return rest


def report_error(name: str, error: Exception | str) -> int:
  """Prints a user error in one line, and returns the exit code for it."""
  print(f'{name}: {" ".join(str(error).split())}', file=sys.stderr)
  return 2
