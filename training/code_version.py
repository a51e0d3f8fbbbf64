"""Which code this process runs: the revision of its checkout, and a digest of what decides a run's numbers."""

import functools
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
DECIDES = ('model', 'training')  # the packages whose code decides the numbers of a run
SHOWN = 8  # characters of a digest, for people


def digest_of(project: Path) -> str:
  """The sha256 over the names and contents of the modules that decide a run's numbers."""
  digest = hashlib.sha256()
  for package in DECIDES:
    for path in sorted((project / package).rglob('*.py')):
      if path.stem.isidentifier() and path.is_file():  # an editor's lock, as .#loop.py, is no module
        content = path.read_bytes()
        digest.update(f'{path.relative_to(project).as_posix()} {len(content)}\n'.encode() + content)
  return digest.hexdigest()


DIGEST = digest_of(PROJECT)  # as this process imports the code: an edit made later is not what it runs


@functools.cache
def code() -> dict[str, Any]:
  """The code that this process runs, for a result.

  Returns:
    `revision`: the commit of the checkout; None outside of one. `digest`: see `digest_of`. `modified`: whether the
    modules that the digest is of differ from that commit.
  """
  revision = _git('rev-parse', 'HEAD') if (PROJECT / '.git').exists() else None
  changes = revision and _git('status', '--porcelain', '--untracked-files=all', '--', *DECIDES)
  modified = any(line.endswith('.py') for line in (changes or '').splitlines())
  return {'revision': revision, 'digest': DIGEST, 'modified': modified}


def code_revision() -> str | None:
  """The commit of this checkout, with `+changes` if any file of it was changed; None outside of one."""
  revision = code()['revision']
  return revision and revision + ('+changes' if _git('status', '--porcelain', '--untracked-files=no') else '')


def other_code(results: Iterable[Mapping[str, Any]], here: str = DIGEST) -> str | None:
  """What a report says of runs that were made by other code than this checkout's; None if there are none.

  Args:
    results: as `training.run_files.result.read_result` gives them. Those of older versions do not say what made them.
    here: the digest of this checkout.
  """
  results = list(results)
  others = [result['code'] for result in results if result.get('code') and result['code']['digest'] != here]
  if not others:
    return None
  named = ', '.join(dict.fromkeys(describe(code) for code in others))
  return (
    f'{len(others)} of {len(results)} runs were made by other code than this checkout (by {named}; this is digest '
    f'{here[:SHOWN]}): their numbers are those of that code; another --workdir trains them anew'
  )


def describe(code: Mapping[str, Any]) -> str:
  """A code version for people: `revision 842844f+changes, digest 3c28d1aa`."""
  digest = f'digest {code["digest"][:SHOWN]}'
  if not code.get('revision'):
    return digest
  return f'revision {code["revision"][:7]}{"+changes" if code.get("modified") else ""}, {digest}'


def _git(*question: str) -> str | None:
  try:
    answer = subprocess.run(
      ['git', '-C', str(PROJECT), *question], capture_output=True, text=True, errors='replace', timeout=20
    )
  except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):  # no git here, or one that does not answer
    return None
  return None if answer.returncode else answer.stdout.strip()
