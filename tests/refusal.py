"""Checks that `train.py` refuses a command: it prints one line, exits with code 2 and writes nothing."""

from pathlib import Path

from in_process import run_main


def content_of(folder: Path) -> dict[str, bytes | None]:
  return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


def assert_refused(arguments: list[str], message: str, folder: Path, capfd) -> None:
  before = content_of(folder)
  assert run_main(*arguments) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error.count('\n') == 1
  assert error.startswith('train.py: ')
  assert message in error
  assert content_of(folder) == before
