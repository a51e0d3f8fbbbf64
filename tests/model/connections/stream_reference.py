"""An independent forward pass, NumPy in float64, of a design on one stream; the test defines its sublayer."""

import numpy_reference as reference


def logits(params, tokens, config, sublayer, final_norm=True):
  """Logits of a model without biases, position tables, and an embedding norm.

  Args:
    params: its parameters in float64.
    tokens: token ids.
    config: the model config.
    sublayer: (index, p, x, F) -> x, the index counted from 1 and p the parameters of the connection, such as `norm`.
    final_norm: whether there is a norm before the head.
  """
  x = params['embedding']['token'][tokens]
  for index in range(1, 2 * config.num_layers + 1):
    block = reference.layer(params['blocks'], (index - 1) // 2)
    name = 'attention' if index % 2 else 'feed_forward'

    def branch(z, block=block, name=name):
      if name == 'attention':
        return reference.attention(block['attention'], z, config)
      return reference.feed_forward(block['feed_forward'], z, config.feed_forward)

    x = sublayer(
      index, {key.removeprefix(f'{name}_'): p for key, p in block.items() if key.startswith(f'{name}_')}, x, branch
    )
  if final_norm:
    x = reference.norm(params['final_norm'], x, config.norm)
  return x @ params['head']['kernel']
