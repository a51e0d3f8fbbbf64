"""What all commands do alike: read their flags, print, and tell a mistake in one line."""

import codecs
import functools
import sys
from collections.abc import Callable

from absl import app, flags, logging
from rich.console import Console

from lab.cli import help_text, signals
from lab.cli.flag_hints import flag_hint
from lab.cli.output import outlive_readers
from training.cache import enable_compilation_cache
from training.config import ConfigError
from training.files import SaveFailed
from training.paths import printable
from training.run_files.locks import Moved

WIDTH = 100  # of what is printed where there is no terminal
NARROWEST = 20  # columns of a terminal that is believed
# For an output whose encoding lacks them.
SPELLED = {'±': '+-', '×': 'x', '−': '-', '–': '-', '→': '->', '←': '<-', '█': '#'}  # noqa: RUF001


def new_console() -> Console:
  """Where a command prints: names and paths as they are, since none of them is markup, and whatever the encoding."""
  codecs.register_error('spelled', _spelled)
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, 'reconfigure'):  # an io.TextIOWrapper, or what stands before one
      stream.reconfigure(errors='spelled')
  console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, emoji=False, highlight=False)
  if console.width < NARROWEST:  # some terminals give none, and nothing at all would be printed
    console.width = WIDTH
  return console


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
  """Replaces what an output cannot write: by its spelling, a part of a bar by nothing, else by its code point."""
  assert isinstance(error, UnicodeEncodeError)
  character = error.object[error.start]
  if character in SPELLED:
    return SPELLED[character], error.start + 1
  if '▁' <= character <= '▟':
    return ' ', error.start + 1
  rest = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
  return codecs.backslashreplace_errors(rest)


def run(name: str, main: Callable[[Console], int], own_flags: flags.FlagValues | None = None) -> None:
  """What a command does: parses the flags, runs `main` and exits with its code.

  The code is 2, after one line, for what the user got wrong, and 1 for what could not be read or written.

  Args:
    name: of the command, for its messages.
    main: does the work, printing to the console it is given.
    own_flags: those of a command that defines them apart from absl's, as other commands have some of the same name.
  """
  if own_flags is not None:
    flags.FLAGS.append_flag_values(own_flags)
    own_flags.mark_as_parsed()  # by way of flags.FLAGS

  def guarded(argv: list[str]) -> int:
    del argv
    outlive_readers(name)
    signals.interrupt_when_told()
    logging.set_verbosity(logging.WARNING)  # JAX tells of every backend it does not find
    enable_compilation_cache()
    try:
      return main(new_console())
    except ConfigError as error:
      return refuse(name, error)
    except (SaveFailed, Moved, OSError) as error:
      failed = error if isinstance(error, (SaveFailed, Moved)) else SaveFailed(error.filename or 'a file', error)
      print(f'{name}: {failed}', file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print(f'{name}: stopped', file=sys.stderr)
      return 130

  app.run(guarded, flags_parser=functools.partial(parse_flags, name, own_flags=own_flags))


def parse_flags(name: str, argv: list[str], own_flags: flags.FlagValues | None = None) -> list[str]:
  """Parses the command line of a command, all of it flags; leaves with one line and code 2 at a mistake in it.

  With --help or --helpfull it prints that, and leaves with code 0.
  """
  text = help_text.asked_for(argv, own_flags)
  if text is not None:
    outlive_readers(name)
    print(text)
    raise SystemExit(0)
  try:
    rest = flags.FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    hint = flag_hint(error.flagname, flags.FLAGS)
    raise SystemExit(refuse(name, f'unknown flag --{printable(error.flagname)}{hint}')) from None
  except flags.Error as error:
    raise SystemExit(refuse(name, error)) from None
  if rest[1:]:
    raise SystemExit(refuse(name, f'what is {rest[1]!r}? Every argument is a flag, as in --name=value'))
  return rest


def refuse(name: str, error: Exception | str) -> int:
  """Says what is wrong with what was asked for, in one line, and returns the exit code for it."""
  print(f'{name}: {" ".join(str(error).split())}', file=sys.stderr)
  return 2
