import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

from training import cache

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def logged(monkeypatch):
  """The warnings that the module logs."""
  messages: list[str] = []
  monkeypatch.setattr(cache.logging, 'warning', lambda message, *args: messages.append(message % args))
  return messages


def test_the_cache_folder_is_blocklab_cache_or_the_users(tmp_path, monkeypatch):
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'mine'))
  assert cache.cache_directory() == tmp_path / 'mine'
  for unset in ('', None):
    monkeypatch.setenv('BLOCKLAB_CACHE', '') if unset == '' else monkeypatch.delenv('BLOCKLAB_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'users'))
    assert cache.cache_directory() == cache.platformdirs.user_cache_path('blocklab')


def test_a_cache_file_has_all_its_parts(tmp_path, logged):
  assert cache.try_write(tmp_path / 'folder' / 'file', b'one ', b'two')
  assert (tmp_path / 'folder' / 'file').read_bytes() == b'one two'
  assert logged == []


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch, logged):
  def refuse(source, target):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'replace', refuse)
  assert not cache.try_write(tmp_path / 'folder' / 'file', b'content')
  assert list((tmp_path / 'folder').iterdir()) == []


def test_an_unusable_cache_folder_gives_one_warning(tmp_path, monkeypatch, logged):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path / 'file'))
  before = jax.config.jax_compilation_cache_dir
  cache.enable_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == before
  assert not cache.try_write(tmp_path / 'file' / 'tokens' / 'a.bin', b'x')
  assert logged == [
    f'cannot write to the cache folder {tmp_path}/file/compiled: compiled programs are not cached',
    f'cannot write to the cache folder {tmp_path}/file/tokens (Not a directory): working in memory',
  ]


def test_a_cache_folder_without_permission_gives_one_warning(tmp_path, monkeypatch, logged):
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path))
  monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.W_OK)  # the tests may run as root
  before = jax.config.jax_compilation_cache_dir
  cache.enable_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == before
  assert logged == [f'cannot write to the cache folder {tmp_path}/compiled: compiled programs are not cached']


class Warns:
  """A jitted function whose compilation warns."""

  __name__ = 'step'

  def __init__(self, *messages: str):
    self.messages = messages

  def lower(self, *arguments):
    self.arguments = arguments
    return self

  def compile(self):
    for message in self.messages:
      warnings.warn(message, UserWarning, stacklevel=1)
    return 'compiled'


UNREADABLE = "Error reading persistent compilation cache entry for 'jit_step': EOFError"


def test_only_the_entries_of_the_unreadable_program_are_deleted(tmp_path, monkeypatch, logged):
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path))
  (tmp_path / 'compiled').mkdir()
  for name in ('jit_step-1-cache', 'jit_step-2-atime', 'jit_step_two-1-cache', 'jit_init-1-cache'):
    (tmp_path / 'compiled' / name).touch()
  assert cache.compile_with_cache(Warns(UNREADABLE), 1, 2) == 'compiled'
  assert sorted(os.listdir(tmp_path / 'compiled')) == ['jit_init-1-cache', 'jit_step_two-1-cache']
  assert logged == [f'deleting unreadable compiled programs jit_step-* in {tmp_path}/compiled']


def test_other_compiler_warnings_are_passed_on(tmp_path, monkeypatch, logged):
  monkeypatch.setenv('BLOCKLAB_CACHE', str(tmp_path))
  with pytest.warns(UserWarning, match='^slow operation$') as caught:
    assert cache.compile_with_cache(Warns('slow operation')) == 'compiled'
  assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
  assert logged == []


SCRIPT = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from absl import logging
from training import cache

messages, events = [], []
cache.logging = type('', (), {'warning': lambda text, *args: messages.append(text % args)})
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition('/')[2]))
cache.enable_compilation_cache()
(folder,) = Path(sys.argv[1]).glob('compiled')

def step(x):
  return 2 * x + 1

def other(x):
  return 3 * x

def start(function):
  jax.clear_caches()
  messages.clear(), events.clear()
  compiled = cache.compile_with_cache(jax.jit(function), jax.ShapeDtypeStruct((3,), jnp.float32))
  return {
    'hits': events.count('cache_hits'), 'misses': events.count('cache_misses'), 'messages': list(messages),
    'right': compiled(jnp.arange(3.0)).tolist(), 'entries': len(list(folder.glob('jit_step-*-cache'))),
  }

output = {'first': start(step), 'again': start(step), 'other': start(other)}
(entry,) = folder.glob('jit_step-*-cache')
entry.write_bytes(entry.read_bytes()[:40])
output |= {'damaged': start(step), 'rewritten': start(step), 'loaded': start(step), 'other again': start(other)}
print(json.dumps(output))
"""


@pytest.fixture(scope='module')
def output(tmp_path_factory):
  """The output of a process that compiles, with a cache entry that is then truncated."""
  folder = tmp_path_factory.mktemp('private')
  environment = os.environ | {'BLOCKLAB_CACHE': str(folder), 'PYTHONPATH': str(PROJECT), 'JAX_PLATFORMS': 'cpu'}
  command = [sys.executable, '-W', 'error', '-c', SCRIPT, str(folder)]
  done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def test_compiled_programs_are_cached(output):
  assert (output['first']['hits'], output['again']['hits']) == (0, 1)
  assert (output['first']['entries'], output['first']['misses']) == (1, 1)
  assert output['first']['messages'] == output['again']['messages'] == []


def test_a_truncated_cache_entry_is_deleted_and_written_again(output):
  assert [output[name]['right'] for name in ('damaged', 'rewritten', 'loaded')] == [[1.0, 3.0, 5.0]] * 3
  assert len(output['damaged']['messages']) == 1
  assert 'deleting unreadable compiled programs jit_step-*' in output['damaged']['messages'][0]
  assert output['rewritten']['messages'] == output['loaded']['messages'] == []
  assert [output[name]['entries'] for name in ('damaged', 'rewritten', 'loaded')] == [0, 1, 1]
  assert (output['rewritten']['hits'], output['loaded']['hits'], output['other again']['hits']) == (0, 1, 1)
