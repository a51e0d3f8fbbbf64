import json

import jax.numpy as jnp
import numpy as np
import pytest

from training import digests
from training.digests import Damaged, array_checksums, read_manifest, write_manifest

DTYPES = ['float32', 'bfloat16', 'int32', 'uint32', 'int8', 'float16']


def checksum_of(array) -> int:
  return int(array_checksums({'a': array})["['a']"])


def expected_checksum(words: np.ndarray) -> int:
  """MurmurHash3's finaliser with Python integers."""

  def mix(word: int) -> int:
    word = (word ^ (word >> 16)) * 0x85EBCA6B % 2**32
    word = (word ^ (word >> 13)) * 0xC2B2AE35 % 2**32
    return word ^ (word >> 16)

  return sum(mix(int(word) ^ mix(position)) for position, word in enumerate(words)) % 2**32


@pytest.mark.parametrize('dtype', DTYPES)
def test_the_checksum_depends_on_the_bits_and_their_order(dtype):
  array = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)) * 50, dtype)
  kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize]
  assert checksum_of(array) == expected_checksum(np.asarray(array).view(kind).ravel())


@pytest.mark.parametrize('dtype', DTYPES)
def test_any_flipped_bit_changes_the_checksum(dtype):
  array = np.asarray(jnp.asarray(np.random.default_rng(0).normal(size=4) * 50, dtype))
  sums = {checksum_of(jnp.asarray(array))}
  for bit in range(8 * array.nbytes):
    content = bytearray(array.tobytes())
    content[bit // 8] ^= 1 << bit % 8
    sums.add(checksum_of(jnp.asarray(np.frombuffer(content, array.dtype))))
  assert len(sums) == 8 * array.nbytes + 1


@pytest.mark.parametrize(('one', 'other'), [(1.0, -1.0), (0.0, -0.0), (np.nan, -np.nan), (1.0, 2.0), (np.inf, 0.0)])
def test_swapping_two_words_changes_the_checksum(one, other):
  """A weighted sum would not: x and -x differ only in bit 31, which any even difference of weights cancels."""
  array = np.arange(64, dtype=np.float32)
  sums = set()
  for position in (1, 2, 16, 63):
    array[[0, position]] = one, other
    sums.add(checksum_of(jnp.asarray(array)))
    array[[0, position]] = other, one
    sums.add(checksum_of(jnp.asarray(array)))
    array[position] = position
  assert len(sums) == 8


def test_every_array_has_a_checksum_by_path():
  tree = {'b': [jnp.zeros(3), jnp.zeros((0, 4))], 'a': jnp.int32(7)}
  assert array_checksums(tree).keys() == {"['a']", "['b'][0]", "['b'][1]"}
  assert array_checksums(tree)["['b'][1]"] == 0
  assert {value.dtype for value in array_checksums(tree).values()} == {np.dtype(np.uint32)}


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'state').mkdir()
  (tmp_path / 'state' / 'a').write_bytes(b'abc')
  (tmp_path / 'b').write_bytes(b'')
  write_manifest(tmp_path, {'about': {'step': 3}})
  return tmp_path


def test_a_manifest_has_the_sha256_of_every_file(folder):
  manifest = read_manifest(folder)
  assert manifest['about'] == {'step': 3}
  assert manifest['files'] == {
    'b': 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',  # of no bytes
    'state/a': 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad',  # of abc (FIPS 180-2)
  }


@pytest.mark.parametrize('name', ['state/a', 'b', 'manifest.json'])
def test_a_missing_or_changed_file_is_named(folder, name):
  content = (folder / name).read_bytes()
  (folder / name).write_bytes(content + b'x')
  with pytest.raises(Damaged, match=rf'{name} has changed$'):
    read_manifest(folder)
  (folder / name).unlink()
  with pytest.raises(Damaged, match=rf'{name}: No such file or directory$'):
    read_manifest(folder)


def test_a_changed_manifest_is_detected(folder):
  path = folder / digests.MANIFEST
  manifest = json.loads(path.read_text())
  for changed in ({**manifest, 'about': {'step': 4}}, {**manifest, 'files': {}}, [], {'sha256': 'x'}, None):
    path.write_text(json.dumps(changed))
    with pytest.raises(Damaged, match=r'manifest\.json has changed'):
      read_manifest(folder)
