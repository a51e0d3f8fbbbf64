"""The names of metrics, as in metrics.jsonl: the only module that formats and parses them.

train/loss                               of the whole model
grad_norm/head                           of a parameter outside the blocks
grad_norm/block_03/attention/query       of a parameter of a block
stream_rms/block_03/attention            at a sublayer
attention_entropy/block_03/head_0        of an attention head
stream_gradient/block_03/attention/skip  one part of the stream gradient at a sublayer

The values of each measure are described in training/metrics.py.
"""

import dataclasses
import re

TRAIN_LOSS, Z_LOSS = 'train/loss', 'train/z_loss'
VALIDATION_LOSS, VALIDATION_BITS = 'validation/loss', 'validation/bits_per_byte'
LEARNING_RATE, NONFINITE_IN_A_ROW = 'learning_rate', 'nonfinite_in_a_row'
STREAM_GRADIENT, STREAM_GRADIENT_BY_POSITION = 'stream_gradient', 'stream_gradient_by_position'
STREAM_RMS = 'stream_rms'
GRAD_NORM, UPDATE_NORM, PARAM_NORM, UPDATE_RATIO = 'grad_norm', 'update_norm', 'param_norm', 'update_ratio'
SEQUENCE_GRAD_NORM = 'sequence_grad_norm'
GLOBAL_GRAD_NORM, CLIPPED_GRAD_NORM = f'{GRAD_NORM}/global', f'{GRAD_NORM}/clipped'
CLIPPED_STEPS = f'{GRAD_NORM}/clipped_steps'  # the fraction of all steps so far
GLOBAL_UPDATE_NORM, GLOBAL_PARAM_NORM = f'{UPDATE_NORM}/global', f'{PARAM_NORM}/global'
CONNECTION_WEIGHTS = ('reading', 'mixing', 'writing')  # of designs with several arrays; arrays, and not logged
SUBLAYERS = ('attention', 'feed_forward')
OUTPUT = 'output'  # the site of the stream gradient at the output of the stack
_BLOCK = re.compile('block_([0-9]{2}|[1-9][0-9]{2,})')


@dataclasses.dataclass(frozen=True)
class MetricName:
  """The name of a metric; `str` formats it, and `parse` is the inverse.

  Attributes:
    measure: the quantity, such as `grad_norm`.
    layer: the index of the block; None outside the blocks.
    site: where in the block, or outside the blocks: a sublayer, a parameter such as `attention/query`, `head_0`,
      `output` or `global`; empty for the whole block.
    part: of a stream gradient: `total`, `skip`, `branch`, `cosine` or `gain`; empty for other measures.
  """

  measure: str
  layer: int | None = None
  site: str = ''
  part: str = ''

  def __str__(self) -> str:
    block = '' if self.layer is None else f'block_{self.layer:02d}'
    return '/'.join(filter(None, (self.measure, block, self.site, self.part)))

  @classmethod
  def parse(cls, name: str) -> 'MetricName':
    """The inverse of `str`, for any name in metrics.jsonl."""
    measure, *rest = name.split('/')
    block = _BLOCK.fullmatch(rest[0]) if rest else None
    if block:
      del rest[0]
    part = rest.pop() if rest and measure in (STREAM_GRADIENT, STREAM_GRADIENT_BY_POSITION) else ''
    return cls(measure, int(block[1]) if block else None, '/'.join(rest), part)

  def stack_position(self, num_layers: int | None = None) -> float | None:
    """The position in the stack: 3 for block 3's attention, 3.5 for its feed-forward, num_layers for the output.

    None for other sites, and for the output without num_layers.
    """
    if self.layer is None:
      return float(num_layers) if self.site == OUTPUT and num_layers is not None else None
    return self.layer + SUBLAYERS.index(self.site) / len(SUBLAYERS) if self.site in SUBLAYERS else None
