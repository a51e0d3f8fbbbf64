"""The n-gram baselines stored with an experiment's runs belong to one text, split and part."""

import json

import fake_runs
import pytest
from summaries import load_summary

from lab.analysis import ngram_baselines
from training.data.loading import Data
from training.data.ngrams import ngram_bits_per_byte
from training.data.tokenization import encode_text
from training.data.tokenizer import byte_encoder
from training.files import write_sealed

pytestmark = pytest.mark.usefixtures('svg_only')


def data_of(text: bytes, checksum: str) -> Data:
  """A text as bytes, with only the fields that n-grams are counted from."""
  return Data(256, checksum, None, None, None, encode_text(text, byte_encoder(), checksum))


ONE, OTHER = data_of(b'in the beginning ' * 90, 'one'), data_of(b'was the word, and ' * 90, 'other')


@pytest.mark.parametrize('split', ['validation', 'test'])
def test_baselines_are_computed_once_per_text(tmp_path, split):
  path = ngram_baselines.write_if_outdated(tmp_path, split, ONE)
  assert ngram_baselines.read(tmp_path, split, 'one') == ngram_bits_per_byte(ONE, split)
  assert ngram_baselines.read(tmp_path, split, 'other') is None
  assert ngram_baselines.read(tmp_path, 'test' if split == 'validation' else 'validation', 'one') is None
  before = path.stat().st_mtime_ns
  ngram_baselines.write_if_outdated(tmp_path, split, ONE)
  assert path.stat().st_mtime_ns == before
  ngram_baselines.write_if_outdated(tmp_path, split, OTHER)
  assert (
    ngram_baselines.read(tmp_path, split, 'other')
    == ngram_bits_per_byte(OTHER, split)
    != ngram_bits_per_byte(ONE, split)
  )
  assert ngram_baselines.read(tmp_path, split, 'one') is None


def test_baselines_are_computed_again_for_another_part_of_the_split(tmp_path, monkeypatch):
  monkeypatch.setattr('training.data.splits.BLOCK', 16)
  monkeypatch.setattr('training.data.evaluation_subset.BLOCK', 16)
  data = data_of(b'in the beginning ' * 90, 'one')
  whole, part = (
    ngram_baselines.write_if_outdated(tmp_path / str(tokens), 'test', data, tokens).parent for tokens in (0, 32)
  )
  assert ngram_baselines.read(whole, 'test', 'one', 0) != ngram_baselines.read(part, 'test', 'one', 32)
  assert ngram_baselines.read(part, 'test', 'one', 32) == ngram_bits_per_byte(data, 'test', 32)
  for wrong in (0, 33, None):
    assert ngram_baselines.read(part, 'test', 'one', wrong) is None
  ngram_baselines.write_if_outdated(part, 'test', data, 10**6)
  assert ngram_baselines.read(part, 'test', 'one', 0) == ngram_baselines.read(whole, 'test', 'one', 0)


DAMAGE = {
  'a digit': lambda stored: {**stored, 'bits_per_byte': {**stored['bits_per_byte'], 'unigram': 1.0}},
  'no checksum': lambda stored: {name: value for name, value in stored.items() if name != 'sha256'},
  'an older version': lambda stored: stored['bits_per_byte'],
  'nothing': lambda stored: {},
}


@pytest.mark.parametrize('case', [*DAMAGE, 'cut', 'other values'])
def test_baselines_in_a_damaged_file_are_computed_again(tmp_path, case):
  path = ngram_baselines.write_if_outdated(tmp_path, 'validation', ONE)
  whole = path.read_bytes()
  if case == 'cut':
    path.write_bytes(whole[:40])
  elif case == 'other values':
    about = {'data_checksum': 'one', 'split': 'validation', 'part': 0}
    write_sealed(path, {**about, 'bits_per_byte': {'unigram': -1}})
  else:
    path.write_text(json.dumps(DAMAGE[case](json.loads(whole))))
  assert ngram_baselines.read(tmp_path, 'validation', 'one') is None
  ngram_baselines.write_if_outdated(tmp_path, 'validation', ONE)
  assert path.read_bytes() == whole


def test_a_report_shows_only_baselines_of_its_own_text_split_and_part(tmp_path):
  directory = fake_runs.write_experiment(tmp_path / 'block', levels={'baseline': 2.9}, points=2)
  assert load_summary(fake_runs.BLOCK, directory)['yardsticks'] == fake_runs.NGRAM_BASELINES
  stored = {'data_checksum': fake_runs.CHECKSUM, 'split': 'validation', 'part': 0}
  stored['bits_per_byte'] = fake_runs.NGRAM_BASELINES
  for wrong in ({'data_checksum': 'another'}, {'split': 'test'}, {'part': 100}):
    write_sealed(directory / 'yardsticks.json', stored | wrong)
    assert load_summary(fake_runs.BLOCK, directory)['yardsticks'] == {}
  (directory / 'yardsticks.json').write_text(json.dumps(fake_runs.NGRAM_BASELINES))
  assert load_summary(fake_runs.BLOCK, directory)['yardsticks'] == {}
