import hashlib
import json

import made_result
import pytest

from training.digests import Damaged
from training.run_files.result import is_unchecked, read_result, write_result

RESULT = made_result.RESULT
OLD = {name: value for name, value in RESULT.items() if name != 'code'}  # of an older version, without checksum


def write(directory, content) -> None:
  (directory / 'result.json').write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_result_round_trips(tmp_path):
  assert read_result(tmp_path) is None
  write_result(tmp_path, RESULT)
  result = read_result(tmp_path)
  assert result == RESULT
  assert not is_unchecked(result)
  made_result.finish(tmp_path, 'diverged')
  assert read_result(tmp_path)['diverged_at'] == 7


def test_the_checksum_is_the_sha256_of_the_other_fields(tmp_path):
  """The checksum is of the canonical JSON with sorted keys."""
  write_result(tmp_path, RESULT)
  stored = json.loads((tmp_path / 'result.json').read_text())
  checksum = stored.pop('sha256')
  assert checksum == hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def test_any_changed_digit_is_damage(tmp_path):
  """Changes each digit of the file in turn."""
  content = write_result(tmp_path, RESULT).read_text()
  seen = 0
  for offset, character in enumerate(content):
    if character.isdigit():
      write(tmp_path, content[:offset] + str((int(character) + 1) % 10) + content[offset + 1 :])
      with pytest.raises(Damaged, match=r'result\.json is damaged \(.*\): the command that trained the run eval'):
        read_result(tmp_path)
      seen += 1
  assert seen > 100


@pytest.mark.parametrize('missing', ['sha256', 'val_loss', 'code', 'status'])
def test_a_missing_field_is_damage(tmp_path, missing):
  stored = json.loads(write_result(tmp_path, RESULT).read_text())
  del stored[missing]
  write(tmp_path, stored)
  with pytest.raises(Damaged):
    read_result(tmp_path)


def test_results_of_older_versions_are_read_and_marked_unchecked(tmp_path):
  write(tmp_path, OLD)
  result = read_result(tmp_path)
  assert result == OLD
  assert is_unchecked(result)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'status': 'done'}, "status is 'done', not one of completed, diverged, failed_to_learn"),
    ({'status': 'diverged'}, 'status is diverged and diverged_at None'),
    ({'diverged_at': 7}, 'status is completed and diverged_at 7'),
    ({'diverged_at': 0, 'status': 'diverged'}, 'diverged_at is 0, not more than 0'),
    ({'val_loss': None}, 'status is completed and val_loss null'),
    ({'val_loss': -1.0}, r'val_loss is -1\.0, not at least 0'),
    ({'val_loss': '2.0'}, r"val_loss is '2\.0', not a number"),
    ({'val_loss': True}, 'val_loss is True, not a number'),
    ({'val_loss': [2.0]}, 'val_loss is .*, not a number'),
    ({'val_bits_per_byte': -0.1}, 'val_bits_per_byte is -0.1'),
    ({'test_loss': -0.1}, 'test_loss is -0.1'),
    ({'steps': 300.0}, r'steps is 300\.0, not an integer'),
    ({'steps': -1}, 'steps is -1, not at least 0'),
    ({'steps': None}, 'steps is null'),
    ({'parameters': 0}, 'parameters is 0, not more than 0'),
    ({'parameters': 2**63}, 'parameters is 9223372036854775808, which is too large'),
    ({'val_loss': 10**400}, 'val_loss is 10{39}.*, which is too large'),
    ({'seed': True}, 'seed is True, not an integer'),
    ({'seed': -1}, 'seed is -1'),
    ({'learning_rate': -4e-3}, 'learning_rate is -0.004'),
    ({'learning_rate_tuned': 1}, 'learning_rate_tuned is 1, not true or false'),
    ({'variant': 3}, 'variant is 3, not text'),
    ({'variant': 'a\nb'}, 'variant is .*, with unprintable characters'),
    ({'variant': '\ud800'}, 'variant is .*, with unprintable characters'),
    ({'versions': 'jax'}, "versions is 'jax', not an object"),
    ({'extended_at': 3}, 'extended_at is 3, not a list'),
    ({'data_checksum': None}, 'data_checksum is null'),
    ({'unigram_entropy': -4}, 'unigram_entropy is -4'),
  ],
)
def test_a_field_of_another_type_or_range_is_damage(tmp_path, change, message):
  """Also in a result of an older version, without a checksum."""
  write(tmp_path, OLD | change)
  with pytest.raises(Damaged, match=rf'result\.json is damaged \({message}.*\): ') as error:
    read_result(tmp_path)
  assert '\n' not in str(error.value)


HOSTILE = {
  'NaN': (json.dumps(OLD | {'val_loss': float('nan')}), 'NaN is not JSON'),
  'Infinity': (json.dumps(OLD | {'val_loss': float('inf')}), 'Infinity is not JSON'),
  '1e999': (json.dumps(OLD).replace('2.885', '1e999'), 'the number 1e999 is too large'),
  'twice': (json.dumps(OLD).replace('{', '{"val_loss": 1.0, ', 1), "'val_loss' occurs twice"),
  'digits': (json.dumps(OLD).replace('300', '3' * 5000, 1), 'Exceeds the limit'),
  'nested': ('{"a":' * 100_000 + '1' + '}' * 100_000, 'nested too deeply'),
  'lists': ('[' * 100_000 + ']' * 100_000, 'nested too deeply'),
  'list': ('[]', 'not a JSON object'),
  'text': ('"x"', 'not a JSON object'),
  'empty': ('', 'Expecting value'),
  'cut': (json.dumps(OLD)[:-9], 'Unterminated string'),
  'zeros': ('\0' * 500, 'Expecting value'),
  'object': ('{}', 'it has no experiment'),
  'more': (json.dumps(OLD) + '}', 'Extra data'),
}


@pytest.mark.parametrize('what', HOSTILE)
def test_invalid_json_is_damage(tmp_path, what):
  content, message = HOSTILE[what]
  write(tmp_path, content)
  with pytest.raises(Damaged, match=rf'result\.json is damaged \({message}') as error:
    read_result(tmp_path)
  assert '\n' not in str(error.value)
  assert len(str(error.value)) < len(str(tmp_path)) + 300


def test_invalid_utf8_is_damage(tmp_path):
  (tmp_path / 'result.json').write_bytes(b'\xff\xfe{}')
  with pytest.raises(Damaged, match=r'result\.json is damaged \(.*decode'):
    read_result(tmp_path)
