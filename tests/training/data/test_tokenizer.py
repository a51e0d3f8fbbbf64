"""That a tokenizer is accepted exactly where its tokens give the text back, and what its first token stands for."""

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from training.config import ConfigError
from training.data.tokenizer import DecoderReading, Encoder, Tokenizer, load_tokenizer

ENGLISH = 'In the beginning God created the heaven and the earth. And the earth was without form, and void; 10 < 12\n'
CYRILLIC = 'Въ началѣ сотвори Богъ небо и землю. '
BYTES = {f'<0x{byte:02X}>': byte + 3 for byte in range(256)}


def byte_level(add_prefix_space: bool = False, decoder: bool = True, **trainer) -> tokenizers.Tokenizer:
  """GPT-2's kind, with the bytes of every character among its tokens."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
  if decoder:
    made.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  made.train_from_iterator(
    [ENGLISH], trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False, **trainer)
  )
  return made


def sentencepiece(scheme: str = 'first', mark: str = '▁') -> tokenizers.Tokenizer:
  """Llama's kind: BPE on characters, `▁` for a blank, and bytes for characters it does not know."""
  vocabulary = {'<unk>': 0, mark: 1, 'e': 2, **BYTES, f'{mark}e': 259, 'n': 260}
  made = tokenizers.Tokenizer(
    models.BPE(vocabulary, [(mark, 'e')], unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  )
  made.pre_tokenizer = pre_tokenizers.Metaspace(mark, prepend_scheme=scheme, split=False)
  made.decoder = decoders.Sequence(
    [decoders.Replace(mark, ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
  )
  return made


def trained(model, trainer, pre_tokenizer=None, normalizer=None, decoder=None, unknown='') -> tokenizers.Tokenizer:
  """Any other kind, trained on English."""
  made = tokenizers.Tokenizer(model)
  for name, part in (('pre_tokenizer', pre_tokenizer), ('normalizer', normalizer), ('decoder', decoder)):
    if part is not None:
      setattr(made, name, part)
  made.train_from_iterator([ENGLISH], trainer)
  return made


def words(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.WordLevelTrainer(special_tokens=['[UNK]'], show_progress=False)
  return trained(models.WordLevel(unk_token='[UNK]'), trainer, pre_tokenizers.WhitespaceSplit(), **parts)


def word_pieces(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=['[UNK]'], show_progress=False)
  return trained(models.WordPiece(unk_token='[UNK]'), trainer, pre_tokenizers.BertPreTokenizer(), **parts)


def characters(**parts) -> tokenizers.Tokenizer:
  """BPE without an unknown token: what it does not know it drops."""
  return trained(models.BPE(), trainers.BpeTrainer(vocab_size=80, show_progress=False), **parts)


def unigram(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.UnigramTrainer(vocab_size=60, unk_token='<unk>', special_tokens=['<unk>'], show_progress=False)
  return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), **parts)


def changed(made: tokenizers.Tokenizer, **parts) -> tokenizers.Tokenizer:
  for name, part in parts.items():
    setattr(made, name, part)
  return made


def with_tokens(made: tokenizers.Tokenizer, *added: tokenizers.AddedToken) -> tokenizers.Tokenizer:
  made.add_tokens(list(added))
  return made


@pytest.fixture
def load(tmp_path) -> Callable[..., Encoder]:
  def loaded(made: tokenizers.Tokenizer, end_token: str = '') -> Encoder:
    made.save(str(tmp_path / 't.json'))
    return load_tokenizer(str(tmp_path / 't.json'), end_token)

  return loaded


@pytest.mark.parametrize(
  ('made', 'text', 'before', 'after'),
  [
    (characters(), 'the ' + CYRILLIC, 'Въ началѣ', ''),
    (characters(), 'the heaven éand', 'éand', 'and'),
    (unigram(), 'the ' + CYRILLIC, 'Въ', '<unk>'),
    (words(), 'the beginnings', 'beginnings', '[UNK]'),
    (words(), 'In the beginning', None, None),
    (words(), 'In  the beginning', ' the', 'the'),
    (words(), 'the\nearth', 'the\nearth', 'theearth'),
    (word_pieces(decoder=decoders.WordPiece(cleanup=True)), 'the earth , and', 'earth ,', 'earth,'),
    (word_pieces(), 'the heavene', 'heavene', None),
    (changed(byte_level(), normalizer=normalizers.Lowercase()), ENGLISH, 'In the', 'in the'),
    (changed(byte_level(), normalizer=normalizers.NFC()), 'cafe\u0301', 'cafe\u0301', 'caf\u00e9'),
    (changed(byte_level(), normalizer=normalizers.NFC()), 'caf\u00e9', None, None),
    (changed(byte_level(), normalizer=normalizers.NFKC()), 'a \ufb01sh', '\ufb01sh', 'fish'),
    (changed(byte_level(), normalizer=normalizers.Strip()), 'the earth \n', '', ''),
    (changed(byte_level(), normalizer=normalizers.StripAccents()), 'na\u00efve', None, None),
    (changed(byte_level(), normalizer=normalizers.Replace('  ', ' ')), 'the  earth', ' earth', 'earth'),
    (changed(byte_level(), normalizer=normalizers.Replace('\n', '')), 'the\nearth', 'the\nearth', 'theearth'),
    (with_tokens(byte_level(), tokenizers.AddedToken('God', rstrip=True, lstrip=True)), 'the God of', None, 'theGod'),
    (sentencepiece(), 'e\u2581e', 'e\u2581e', 'e e'),
    (sentencepiece(), 'n <0x41>', None, None),
  ],
)  # fmt: skip
def test_a_tokenizer_that_changes_the_text_is_refused_with_an_example(load, made, text, before, after):
  piece, encoder = text.encode(), load(made)
  if before is None and after is None:  # nothing of this text is lost
    ids, _ = encoder.encode(piece, True)
    assert len(ids)
    return
  with pytest.raises(ConfigError, match=r't\.json does not keep the text: ') as error:
    encoder.encode(piece, True)
  message = str(error.value)
  assert '\n' not in message
  assert before is None or repr(before)[1:-1] in message
  assert after is None or repr(after)[1:-1] in message.partition('comes back as')[2]


LOSSLESS = {
  'byte level': byte_level,
  'byte level without a decoder': lambda: byte_level(decoder=False),
  'byte level with a blank put before': lambda: byte_level(add_prefix_space=True),
  'byte level, blanks among its added tokens': lambda: with_tokens(byte_level(), tokenizers.AddedToken('  ')),
  'byte level that knows the name of a token': lambda: byte_level(special_tokens=['<|endoftext|>', '<unk>']),
  'sentencepiece': sentencepiece,
  'sentencepiece, a blank before each piece': lambda: sentencepiece('always'),
  'sentencepiece, no blank put before': lambda: sentencepiece('never'),
  'sentencepiece without a decoder': lambda: changed(sentencepiece(), decoder=decoders.Fuse()),
}


def size_of(name: str, kind: str) -> int:
  """The bytes of a token, by what its kind writes them as."""
  if 'byte level' in kind:
    return len(name)
  return 1 if name.startswith('<0x') else len(name.replace('▁', ' ').encode())


@pytest.mark.parametrize('kind', LOSSLESS)
def test_a_tokenizer_that_keeps_the_text_counts_its_bytes_exactly(kind):
  made = LOSSLESS[kind]()
  names = {token: name for name, token in made.get_vocab().items()}

  @settings(max_examples=40, deadline=None)
  @given(st.lists(st.text('e n<|endoftxuk>é€😀\n', max_size=12), min_size=1, max_size=4))
  def check(texts):
    encoder = Tokenizer('t.json', made)
    for text in texts:
      ids, first_bytes = encoder.encode(text.encode(), True)
      sizes = [size_of(names[token], kind) for token in ids.tolist()]
      assert first_bytes == len(text.encode()) - sum(sizes[1:])
      assert 0 <= first_bytes <= max([0, *sizes[:1]])

  check()


@pytest.mark.parametrize(
  ('made', 'text', 'first_bytes'),
  [
    (byte_level(), '€', 1),  # three tokens of a byte each
    (byte_level(), 'the', 2),
    (sentencepiece('never'), '€e', 1),
    (sentencepiece('first'), '€e', 0),  # the blank put before is the first token
    (sentencepiece('first'), 'en', 1),
    (sentencepiece('first'), ' en', 2),
    (sentencepiece('never', '_'), '€e', 1),
    (sentencepiece('never', '_'), ' en', 2),
    (words(), 'the earth', 3),
    (with_tokens(byte_level(), tokenizers.AddedToken('€€')), '€€e', 6),
    (byte_level(), '', 0),
  ],
)
def test_what_the_first_token_stands_for(load, made, text, first_bytes):
  assert load(made).encode(text.encode(), True)[1] == first_bytes


def test_a_piece_that_begins_with_a_blank_is_lost_where_its_first_token_counts(load):
  encoder = load(sentencepiece('first'))
  encoder.encode(b'e', True)
  encoder.encode(b'e', False)
  encoder.encode(b' e', True)
  with pytest.raises(ConfigError, match="' e' comes back as 'e'"):
    encoder.encode(b' e', False)


def test_bytes_that_cannot_be_told_are_not_guessed():
  class Contextual:
    """Its decoder gives no part of the text for a part of the tokens."""

    def decode(self, ids, skip_special_tokens):
      return 'text' if len(ids) == 2 else '\ufffd'

  assert DecoderReading(Contextual()).first_bytes([0, 1], b'text', True) is None


def test_one_reading_must_hold_for_the_whole_text(load):
  """`▁` stands for a blank in one piece and for itself in another: the tokens do not tell which."""
  made = tokenizers.Tokenizer(models.BPE({'▁': 0, 'e': 1}, []))
  made.normalizer = normalizers.Replace(' ', '▁')
  for texts in ((b'e e', '▁'.encode()), ('▁'.encode(), b'e e')):
    encoder = load(made)
    encoder.encode(texts[0], True)
    with pytest.raises(ConfigError, match='does not keep the text'):
      encoder.encode(texts[1], True)


def test_names_of_special_tokens_are_ordinary_text(load):
  encoder = load(byte_level(special_tokens=['<|endoftext|>']), '<|endoftext|>')
  assert encoder.end_id == 0
  ids, _ = encoder.encode(b'a<|endoftext|>b', True)
  assert 0 not in ids


def test_merges_dropped_at_random_are_not(load, tmp_path):
  made = byte_level()
  expected = load(made).encode(ENGLISH.encode(), True)[0]
  content = json.loads(made.to_str())
  content['model']['dropout'] = 0.5
  (tmp_path / 't.json').write_text(json.dumps(content))
  np.testing.assert_array_equal(load_tokenizer(str(tmp_path / 't.json')).encode(ENGLISH.encode(), True)[0], expected)


def test_an_end_token_that_is_none_is_named(load):
  with pytest.raises(ConfigError, match=r"^data\.end_token='</s>' is no token of .*: its special tokens are '<eos>'$"):
    load(byte_level(special_tokens=['<eos>']), '</s>')


def test_a_word_that_cannot_be_encoded_at_all_is_told(load):
  made = tokenizers.Tokenizer(models.WordLevel({'in': 0}))
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: .*t\.json cannot encode the text \(WordLevel error'):
    load(made).encode(b'the', True)


def test_a_tokenizer_that_is_none_is_named(tmp_path, monkeypatch):
  path = tmp_path / 'tokenizer.json'
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: cannot read .*tokenizer\.json \(No such file'):
    load_tokenizer(str(path))
  path.write_text('{}')
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: .* is not a tokenizer\.json'):
    load_tokenizer(str(path))
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(ConfigError, match=r'not installed: pip install tokenizers$'):
    load_tokenizer(str(path))
