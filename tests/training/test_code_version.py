import hashlib
import shutil
import subprocess

import pytest

from training import code_version
from training.code_version import code_version as version_of_this_code
from training.code_version import describe_code, digest_of, other_code_note

ONE = {'revision': '842844f' + '0' * 33, 'digest': '11111111' * 8, 'modified': True}
OTHER = {'revision': None, 'digest': '22222222' * 8, 'modified': False}


@pytest.fixture
def project(tmp_path):
  for path in ('model/a.py', 'training/b.py', 'training/deep/c.py', 'experiments/d.py'):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(f'# {path}\n')
  return tmp_path


def test_the_digest_is_of_names_and_contents(project):
  expected = hashlib.sha256()
  for name in ('model/a.py', 'training/b.py', 'training/deep/c.py'):
    expected.update(f'{name} {len(name) + 3}\n# {name}\n'.encode())
  assert digest_of(project) == expected.hexdigest()


def edit(project):
  (project / 'training' / 'b.py').write_text('# edited\n')


def rename(project):
  (project / 'model' / 'a.py').rename(project / 'model' / 'b.py')


def add(project):
  (project / 'model' / 'deep').mkdir()
  (project / 'model' / 'deep' / 'new.py').touch()


def move_a_line(project):
  """Moves the end of one file to the start of the next: the concatenated bytes stay the same."""
  (project / 'training' / 'b.py').write_text('# training/b.py\n# tr')
  (project / 'training' / 'deep' / 'c.py').write_text('aining/deep/c.py\n')


def remove(project):
  (project / 'model' / 'a.py').unlink()


@pytest.mark.parametrize('change', [edit, rename, add, move_a_line, remove])
def test_a_change_to_model_or_training_changes_the_digest(project, change):
  before = digest_of(project)
  change(project)
  assert digest_of(project) != before


def test_other_changes_do_not_change_the_digest(project, tmp_path_factory):
  before = digest_of(project)
  (project / 'experiments' / 'd.py').write_text('# edited\n')
  (project / 'model' / '__pycache__').mkdir()
  (project / 'model' / '__pycache__' / 'a.cpython-312.pyc').write_bytes(b'\0')
  (project / 'model' / '.#a.py').symlink_to('me@host.123')  # lock file of an editor
  (project / 'model' / '._a.py').write_bytes(b'\0')  # created by macOS
  (project / 'model' / 'a.txt').touch()
  assert digest_of(project) == before
  moved = tmp_path_factory.mktemp('moved') / 'elsewhere'
  shutil.copytree(project, moved, symlinks=True)
  assert digest_of(moved) == before


def git(project, *arguments):
  author = ['-c', 'user.name=x', '-c', 'user.email=x@example.org']
  return subprocess.run(
    ['git', '-C', str(project), *author, *arguments], check=True, capture_output=True, text=True
  ).stdout


def test_a_checkout_has_a_revision_and_a_modified_flag(project, monkeypatch):
  monkeypatch.setattr(code_version, 'PROJECT', project)

  def modified():
    version_of_this_code.cache_clear()
    return version_of_this_code()['modified']

  version_of_this_code.cache_clear()
  assert (version_of_this_code()['revision'], version_of_this_code()['modified']) == (None, False)
  git(project, 'init', '-q')
  git(project, 'add', '.')
  git(project, 'commit', '-qm', 'all')
  assert not modified()
  assert version_of_this_code()['revision'] == git(project, 'rev-parse', 'HEAD').strip()
  (project / 'experiments' / 'd.py').write_text('# edited\n')
  (project / 'model' / 'notes.txt').touch()
  assert not modified()
  (project / 'model' / 'new.py').touch()
  assert modified()
  (project / 'model' / 'new.py').unlink()
  edit(project)
  assert modified()
  version_of_this_code.cache_clear()


def test_without_git_only_the_digest_is_known(monkeypatch):
  def missing(*arguments, **more):
    raise FileNotFoundError('git')

  monkeypatch.setattr(subprocess, 'run', missing)
  version_of_this_code.cache_clear()
  assert version_of_this_code() == {'revision': None, 'digest': digest_of(code_version.PROJECT), 'modified': False}
  version_of_this_code.cache_clear()


def test_runs_of_other_code_give_a_note():
  digest = ONE['digest']
  mine, old, others = {'code': ONE}, {'status': 'completed'}, [{'code': OTHER}, {'code': OTHER | {'digest': '3' * 64}}]
  assert other_code_note([], digest) is None
  assert other_code_note([mine, old], digest) is None
  line = other_code_note([mine, *others, old], digest)
  assert line == (
    '2 of 4 runs were trained by code other than this checkout (by digest 22222222, digest 33333333; this is digest '
    '11111111): their numbers are those of that code; use another --workdir to train them again'
  )
  assert other_code_note([mine]) is not None  # of this checkout
  assert describe_code(ONE) == 'revision 842844f+changes, digest 11111111'
