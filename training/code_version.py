"""The code this process runs: the revision of its checkout, and a digest of the modules that determine its numbers."""

import functools
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent  # the checkout
NUMERICAL_PACKAGES = ('model', 'training')  # their code determines a run's numbers
DIGEST_SHOWN = 8  # characters of a digest in messages


def digest_of(project: Path) -> str:
  """The sha256 over the names and contents of the modules that determine a run's numbers."""
  digest = hashlib.sha256()
  for package in NUMERICAL_PACKAGES:
    for path in sorted((project / package).rglob('*.py')):
      if path.stem.isidentifier() and path.is_file():  # not an editor's lock file, such as .#loop.py
        content = path.read_bytes()
        digest.update(f'{path.relative_to(project).as_posix()} {len(content)}\n'.encode() + content)
  return digest.hexdigest()


DIGEST = digest_of(PROJECT)  # computed when this process imports the code: later edits do not affect the process


@functools.cache
def code_version() -> dict[str, Any]:
  """The version of the code that this process runs.

  Returns:
    `revision`: the commit of the checkout, None outside of one. `digest`: see `digest_of`. `modified`: whether the
    modules in the digest differ from that commit.
  """
  revision = _git('rev-parse', 'HEAD') if (PROJECT / '.git').exists() else None
  changes = revision and _git('status', '--porcelain', '--untracked-files=all', '--', *NUMERICAL_PACKAGES)
  modified = any(line.endswith('.py') for line in (changes or '').splitlines())
  return {'revision': revision, 'digest': DIGEST, 'modified': modified}


def code_revision() -> str | None:
  """The commit of this checkout, with `+changes` if any tracked file was changed; None outside of a checkout."""
  revision = code_version()['revision']
  return revision and revision + ('+changes' if _git('status', '--porcelain', '--untracked-files=no') else '')


def distinct_versions(versions: Iterable[Mapping[str, Any] | None]) -> list[Mapping[str, Any]]:
  """The distinct code versions, one per digest, in order; drops the None of runs that recorded no version."""
  return list({version['digest']: version for version in versions if version}.values())


def other_code_note(results: Iterable[Mapping[str, Any]], digest: str = DIGEST) -> str | None:
  """A note for a report if any run was trained by code other than this checkout's; otherwise None.

  Args:
    results: as returned by `training.run_files.result.read_result`. Runs of older versions recorded no code version.
    digest: of this checkout.
  """
  results = list(results)
  others = [result['code'] for result in results if result.get('code') and result['code']['digest'] != digest]
  if not others:
    return None
  named = ', '.join(dict.fromkeys(describe_code(version) for version in others))
  return (
    f'{len(others)} of {len(results)} runs were trained by code other than this checkout (by {named}; this is digest '
    f'{digest[:DIGEST_SHOWN]}): their numbers are those of that code; use another --workdir to train them again'
  )


def describe_code(version: Mapping[str, Any]) -> str:
  """A code version in messages: `revision 842844f+changes, digest 3c28d1aa`."""
  digest = f'digest {version["digest"][:DIGEST_SHOWN]}'
  if not version.get('revision'):
    return digest
  return f'revision {version["revision"][:7]}{"+changes" if version.get("modified") else ""}, {digest}'


def _git(*arguments: str) -> str | None:
  try:
    process = subprocess.run(
      ['git', '-C', str(PROJECT), *arguments], capture_output=True, text=True, errors='replace', timeout=20
    )
  except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):  # git is not installed or does not respond
    return None
  return None if process.returncode else process.stdout.strip()
