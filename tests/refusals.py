"""That `train.py` refuses: one line, exit code 2, nothing written."""

from pathlib import Path

from in_process import run_main


def content_of(folder: Path) -> dict[str, bytes | None]:
  return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


def refused(arguments: list[str], message: str, place: Path, capfd) -> None:
  before = content_of(place)
  assert run_main(*arguments) == 2
  output, error = capfd.readouterr()
  assert output == ''
  assert error.count('\n') == 1
  assert error.startswith('train.py: ')
  assert message in error
  assert content_of(place) == before
