"""JSON files are read as the texts of their records, or refused with the reason."""

import json

import pytest

from training.config import ConfigError, DataConfig
from training.data.documents import read_documents

RECORDS = [{'text': 'one\ntwo', 'body': '1'}, {'text': 'naïve', 'body': '2'}]


@pytest.fixture
def read(tmp_path):
  def of(name: str, content: str, field: str = 'text') -> bytes:
    (tmp_path / name).write_text(content, encoding='utf-8')
    return b'\n'.join(read_documents(DataConfig(task='files', paths=str(tmp_path / name), text_field=field)))

  return of


LINES = '\n'.join(json.dumps(record) for record in RECORDS)


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('a.jsonl', LINES),
    ('a.JSONL', LINES + '\n\n'),
    ('a.ndjson', LINES.replace('\n', '\r\n')),
    ('a.NDJson', LINES),
    ('a.json', json.dumps(RECORDS)),
    ('a.JSON', json.dumps(RECORDS, indent=2)),
    ('a.json', json.dumps([record['text'] for record in RECORDS])),
    ('a.json', LINES),
    ('a.jsonl', '\ufeff' + LINES),
    ('a.json', '\ufeff' + json.dumps(RECORDS)),
    ('a.json', json.dumps({'text': 'one\ntwo\nnaïve'}, indent=2)),
    ('a.jsonl', '{"text": ""}\n' + LINES + '\n{"text": ""}'),
  ],
)
def test_the_texts_of_the_records_are_joined(read, name, content):
  assert read(name, content) == 'one\ntwo\nnaïve'.encode()


def test_each_record_with_text_is_a_document(tmp_path):
  (tmp_path / 'a.jsonl').write_text('{"text": "one"}\n{"text": ""}\n{"text": "two"}')
  (tmp_path / 'b.txt').write_text('three\nfour')
  config = DataConfig(task='files', paths=f'{tmp_path}/*')
  assert read_documents(config) == [b'one', b'two', b'three\nfour']


def test_json_in_a_file_of_another_name_is_plain_text(read):
  assert read('a.txt', LINES) == LINES.encode()


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    (
      'a.json',
      '{"data": [1]}',
      r"is a single JSON object without the field 'text': write an array of records or strings",
    ),
    ('a.json', '{"text": 3}', r"record 1 has no text in the field 'text'"),
    ('a.json', '"text"', 'is not a JSON array'),
    ('a.json', '3', 'is not a JSON array'),
    ('a.json', '[["text"]]', 'record 1 is not a JSON object or string$'),
    (
      'a.json',
      '[{"body": "x"}]',
      r"record 1 has no text in the field 'text': set data.text_field \(fields with text: body\)",
    ),
    ('a.json', '[1, ', r'is not JSON \('),
    ('a.json', '[' * 100_000, r'is not JSON \(nested too deeply\)'),
    ('a.json', '[{"text": "x"}', r'is not JSON \('),
    ('a.json', LINES + '\n{"text"', 'line 3 is not JSON'),
    ('a.json', '[]', 'contains no text'),
    ('a.json', '', r'is not JSON \('),
    ('a.json', '[""]', 'contains no text'),
    ('a.jsonl', '{"text": ""}', 'contains no text'),
    ('a.jsonl', '"text"', 'line 1 is not a JSON object$'),
    ('a.jsonl', '{"text": "x\\u0000"}', 'line 1 contains a NUL character, which is not text'),
    ('a.jsonl', '1' * 5000, 'line 1 is not JSON'),
    ('a.ndjson', '\0', 'line 1 is not JSON'),
  ],
)
def test_json_without_text_is_refused(read, name, content, message):
  with pytest.raises(ConfigError, match=rf'^data\.paths: .*{message}') as error:
    read(name, content)
  assert '\n' not in str(error.value)
