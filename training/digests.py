"""Checksums of arrays, computed on the device, and of the files of a folder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from training.files import CHECKSUM, Damaged, parse_json, write_sealed

MANIFEST = 'manifest.json'


@jax.jit
def array_checksums(tree) -> dict[str, jax.Array]:
  """A uint32 checksum of the bits of every array of a tree, by its path; NaN and -0.0 are distinguished.

  Each word is mixed with its position by a bijection (the finaliser of MurmurHash3, Appleby 2011), and they are summed:
  a single changed word always changes the sum; two swapped words fail to change it with probability 2^-32.
  """
  return {jax.tree_util.keystr(path): _checksum(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _checksum(array: jax.Array) -> jax.Array:
  words = jax.lax.bitcast_convert_type(array, f'uint{8 * array.dtype.itemsize}').astype(jnp.uint32)
  positions = jnp.arange(words.size, dtype=jnp.uint32).reshape(words.shape)
  return jnp.sum(_mix(words ^ _mix(positions)), dtype=jnp.uint32)


def _mix(words):
  words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
  words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
  return words ^ (words >> 16)


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
  """Writes manifest.json into a folder: the sha256 of each file, `content`, and the sha256 of both."""
  files = {str(path.relative_to(folder)): _sha256(path) for path in sorted(folder.rglob('*')) if path.is_file()}
  write_sealed(folder / MANIFEST, {'files': files, **content})


def read_manifest(folder: Path) -> dict[str, Any]:
  """The content of a folder's manifest, after comparing every file with its checksum.

  Raises:
    Damaged: if a file, or the manifest, is missing or has changed.
  """
  path = folder / MANIFEST
  try:
    manifest = parse_json(path.read_bytes())
  except OSError as error:
    raise Damaged(f'{path}: {error.strerror}') from None
  except ValueError:
    raise Damaged(f'{path} has changed') from None
  if CHECKSUM not in manifest:
    raise Damaged(f'{path} has changed')
  for name, sha256 in manifest['files'].items():
    try:
      if _sha256(folder / name) != sha256:
        raise Damaged(f'{folder / name} has changed')
    except OSError as error:
      raise Damaged(f'{folder / name}: {error.strerror}') from None
  return manifest


def _sha256(path: Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
