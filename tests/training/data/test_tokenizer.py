"""A tokenizer is accepted only if its tokens determine the text; its first token stands for a known number of bytes."""

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
from training.data.tokenizer import BuiltInDetokenizer, CheckedTokenizer, Encoder, load_tokenizer

ENGLISH = 'In the beginning God created the heaven and the earth. And the earth was without form, and void; 10 < 12\n'
CYRILLIC = 'Въ началѣ сотвори Богъ небо и землю. '
BYTES = {f'<0x{byte:02X}>': byte + 3 for byte in range(256)}


def byte_level(add_prefix_space: bool = False, decoder: bool = True, **trainer) -> tokenizers.Tokenizer:
  """A byte-level BPE like that of GPT-2, with a token for every byte."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
  if decoder:
    tokenizer.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  tokenizer.train_from_iterator(
    [ENGLISH], trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False, **trainer)
  )
  return tokenizer


def sentencepiece(scheme: str = 'first', mark: str = '▁') -> tokenizers.Tokenizer:
  """A BPE like that of Llama: on characters, with `▁` for a space, and byte fallback for unknown characters."""
  vocabulary = {'<unk>': 0, mark: 1, 'e': 2, **BYTES, f'{mark}e': 259, 'n': 260}
  tokenizer = tokenizers.Tokenizer(
    models.BPE(vocabulary, [(mark, 'e')], unk_token='<unk>', fuse_unk=True, byte_fallback=True)
  )
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(mark, prepend_scheme=scheme, split=False)
  tokenizer.decoder = decoders.Sequence(
    [decoders.Replace(mark, ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
  )
  return tokenizer


def trained(model, trainer, pre_tokenizer=None, normalizer=None, decoder=None, unknown='') -> tokenizers.Tokenizer:
  """Any other tokenizer, trained on English."""
  tokenizer = tokenizers.Tokenizer(model)
  for name, part in (('pre_tokenizer', pre_tokenizer), ('normalizer', normalizer), ('decoder', decoder)):
    if part is not None:
      setattr(tokenizer, name, part)
  tokenizer.train_from_iterator([ENGLISH], trainer)
  return tokenizer


def word_level(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.WordLevelTrainer(special_tokens=['[UNK]'], show_progress=False)
  return trained(models.WordLevel(unk_token='[UNK]'), trainer, pre_tokenizers.WhitespaceSplit(), **parts)


def word_pieces(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=['[UNK]'], show_progress=False)
  return trained(models.WordPiece(unk_token='[UNK]'), trainer, pre_tokenizers.BertPreTokenizer(), **parts)


def characters(**parts) -> tokenizers.Tokenizer:
  """A BPE without an unknown token: it drops unknown characters."""
  return trained(models.BPE(), trainers.BpeTrainer(vocab_size=80, show_progress=False), **parts)


def unigram(**parts) -> tokenizers.Tokenizer:
  trainer = trainers.UnigramTrainer(vocab_size=60, unk_token='<unk>', special_tokens=['<unk>'], show_progress=False)
  return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), **parts)


def changed(tokenizer: tokenizers.Tokenizer, **parts) -> tokenizers.Tokenizer:
  for name, part in parts.items():
    setattr(tokenizer, name, part)
  return tokenizer


def with_tokens(tokenizer: tokenizers.Tokenizer, *added: tokenizers.AddedToken) -> tokenizers.Tokenizer:
  tokenizer.add_tokens(list(added))
  return tokenizer


@pytest.fixture
def load(tmp_path) -> Callable[..., Encoder]:
  def loaded(tokenizer: tokenizers.Tokenizer, end_token: str = '') -> Encoder:
    tokenizer.save(str(tmp_path / 't.json'))
    return load_tokenizer(str(tmp_path / 't.json'), end_token)

  return loaded


@pytest.mark.parametrize(
  ('tokenizer', 'text', 'before', 'after'),
  [
    (characters(), 'the ' + CYRILLIC, 'Въ началѣ', ''),
    (characters(), 'the heaven éand', 'éand', 'and'),
    (unigram(), 'the ' + CYRILLIC, 'Въ', '<unk>'),
    (word_level(), 'the beginnings', 'beginnings', '[UNK]'),
    (word_level(), 'In the beginning', None, None),
    (word_level(), 'In  the beginning', ' the', 'the'),
    (word_level(), 'the\nearth', 'the\nearth', 'theearth'),
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
def test_a_lossy_tokenizer_is_refused_with_an_example(load, tokenizer, text, before, after):
  piece, encoder = text.encode(), load(tokenizer)
  if before is None and after is None:  # this text is restored
    ids, _ = encoder.encode(piece, True)
    assert len(ids)
    return
  with pytest.raises(ConfigError, match=r't\.json is not lossless: ') as error:
    encoder.encode(piece, True)
  message = str(error.value)
  assert '\n' not in message
  assert before is None or repr(before)[1:-1] in message
  assert after is None or repr(after)[1:-1] in message.partition('is decoded as')[2]


LOSSLESS = {
  'byte level': byte_level,
  'byte level without a decoder': lambda: byte_level(decoder=False),
  'byte level with a prefix space': lambda: byte_level(add_prefix_space=True),
  'byte level with an added token of spaces': lambda: with_tokens(byte_level(), tokenizers.AddedToken('  ')),
  'byte level with special tokens': lambda: byte_level(special_tokens=['<|endoftext|>', '<unk>']),
  'sentencepiece': sentencepiece,
  'sentencepiece, prefix space always': lambda: sentencepiece('always'),
  'sentencepiece, prefix space never': lambda: sentencepiece('never'),
  'sentencepiece without a decoder': lambda: changed(sentencepiece(), decoder=decoders.Fuse()),
}


def size_of(name: str, kind: str) -> int:
  """The number of bytes that a token of this kind of tokenizer stands for."""
  if 'byte level' in kind:
    return len(name)
  return 1 if name.startswith('<0x') else len(name.replace('▁', ' ').encode())


@pytest.mark.parametrize('kind', LOSSLESS)
def test_a_lossless_tokenizer_counts_the_bytes_of_the_first_token_exactly(kind):
  tokenizer = LOSSLESS[kind]()
  names = {token: name for name, token in tokenizer.get_vocab().items()}

  @settings(max_examples=40, deadline=None)
  @given(st.lists(st.text('e n<|endoftxuk>é€😀\n', max_size=12), min_size=1, max_size=4))
  def check(texts):
    encoder = CheckedTokenizer('t.json', tokenizer)
    for text in texts:
      ids, first_bytes = encoder.encode(text.encode(), True)
      sizes = [size_of(names[token], kind) for token in ids.tolist()]
      assert first_bytes == len(text.encode()) - sum(sizes[1:])
      assert 0 <= first_bytes <= max([0, *sizes[:1]])

  check()


@pytest.mark.parametrize(
  ('tokenizer', 'text', 'first_bytes'),
  [
    (byte_level(), '€', 1),  # three tokens of one byte each
    (byte_level(), 'the', 2),
    (sentencepiece('never'), '€e', 1),
    (sentencepiece('first'), '€e', 0),  # the prefix space is the first token
    (sentencepiece('first'), 'en', 1),
    (sentencepiece('first'), ' en', 2),
    (sentencepiece('never', '_'), '€e', 1),
    (sentencepiece('never', '_'), ' en', 2),
    (word_level(), 'the earth', 3),
    (with_tokens(byte_level(), tokenizers.AddedToken('€€')), '€€e', 6),
    (byte_level(), '', 0),
  ],
)
def test_the_bytes_of_the_first_token(load, tokenizer, text, first_bytes):
  assert load(tokenizer).encode(text.encode(), True)[1] == first_bytes


def test_a_lost_space_is_refused_where_the_first_token_is_scored(load):
  encoder = load(sentencepiece('first'))
  encoder.encode(b'e', True)
  encoder.encode(b'e', False)
  encoder.encode(b' e', True)
  with pytest.raises(ConfigError, match="' e' is decoded as 'e'"):
    encoder.encode(b' e', False)


def test_an_unknown_number_of_bytes_of_the_first_token_is_not_guessed():
  class Contextual:
    """A tokenizer whose decoder restores the text only from all of its tokens."""

    def decode(self, ids, skip_special_tokens):
      return 'text' if len(ids) == 2 else '\ufffd'

  assert BuiltInDetokenizer(Contextual()).first_bytes([0, 1], b'text', True) is None


def test_one_detokenizer_must_restore_the_whole_text(load):
  """`▁` stands for a space in one piece and for itself in another, so the tokens do not determine the text."""
  tokenizer = tokenizers.Tokenizer(models.BPE({'▁': 0, 'e': 1}, []))
  tokenizer.normalizer = normalizers.Replace(' ', '▁')
  for texts in ((b'e e', '▁'.encode()), ('▁'.encode(), b'e e')):
    encoder = load(tokenizer)
    encoder.encode(texts[0], True)
    with pytest.raises(ConfigError, match='is not lossless'):
      encoder.encode(texts[1], True)


def test_names_of_special_tokens_are_encoded_as_text(load):
  encoder = load(byte_level(special_tokens=['<|endoftext|>']), '<|endoftext|>')
  assert encoder.end_id == 0
  ids, _ = encoder.encode(b'a<|endoftext|>b', True)
  assert 0 not in ids


def test_bpe_dropout_is_turned_off(load, tmp_path):
  tokenizer = byte_level()
  expected = load(tokenizer).encode(ENGLISH.encode(), True)[0]
  content = json.loads(tokenizer.to_str())
  content['model']['dropout'] = 0.5
  (tmp_path / 't.json').write_text(json.dumps(content))
  np.testing.assert_array_equal(load_tokenizer(str(tmp_path / 't.json')).encode(ENGLISH.encode(), True)[0], expected)


def test_an_unknown_end_token_is_refused(load):
  with pytest.raises(ConfigError, match=r"^data\.end_token='</s>' is not a token of .*: its special .* '<eos>'$"):
    load(byte_level(special_tokens=['<eos>']), '</s>')


def test_text_that_cannot_be_encoded_is_refused(load):
  tokenizer = tokenizers.Tokenizer(models.WordLevel({'in': 0}))
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: .*t\.json cannot encode the text \(WordLevel error'):
    load(tokenizer).encode(b'the', True)


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path, monkeypatch):
  path = tmp_path / 'tokenizer.json'
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: cannot read .*tokenizer\.json \(No such file'):
    load_tokenizer(str(path))
  path.write_text('{}')
  with pytest.raises(ConfigError, match=r'^data\.tokenizer: .* is not a tokenizer\.json'):
    load_tokenizer(str(path))
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(ConfigError, match=r'not installed: pip install tokenizers$'):
    load_tokenizer(str(path))
