"""An independent implementation of the Transformer in NumPy, float64: the reference that the model is tested against.

Attention is computed position by position and rotary embeddings by complex numbers, so that the two implementations do
not share mistakes. Parameters are plain dicts, as `model.init` makes them.
"""

import math

import numpy as np

EPSILON = 1e-6


def norm(p, x, kind):
  """RMSNorm or LayerNorm over the last axis, or an elementwise substitute."""
  if kind == 'dyt':
    return p['gain'] * np.tanh(p['alpha'] * x) + p['bias']
  if kind == 'derf':
    return p['gain'] * np.vectorize(math.erf)(p['alpha'] * x + p['shift']) + p['bias']
  if kind == 'layer':
    x = x - x.mean(-1, keepdims=True)
  return p['gain'] * x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) + p.get('bias', 0.0)


def linear(p, x):
  return np.einsum('...i,io->...o', x, p['kernel']) + p.get('bias', 0.0)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def gelu(x):
  """The exact GELU: x times the standard normal distribution function at x."""
  return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def feed_forward(p, x, name):
  up = linear(p['up'], x)
  if name in ('relu', 'gelu', 'silu', 'relu2'):
    hidden = {
      'relu': lambda: np.maximum(up, 0),
      'gelu': lambda: gelu(up),
      'silu': lambda: up * sigmoid(up),
      'relu2': lambda: np.maximum(up, 0) ** 2,
    }[name]()
  else:
    gate = linear(p['gate'], x)
    hidden = (
      up
      * {
        'glu': lambda: sigmoid(gate),
        'swiglu': lambda: gate * sigmoid(gate),
        'geglu': lambda: gelu(gate),
        'reglu': lambda: np.maximum(gate, 0),
        'bilinear': lambda: gate,
      }[name]()
    )
  return linear(p['down'], hidden)


def rotate(x, position):
  """Rotary position: pair i, (x_i, x_{i + K/2}), is a complex number, rotated by position / 10000^(2i/K)."""
  width = x.shape[-1]
  angle = position / 10_000 ** (2 * np.arange(width // 2) / width)
  rotated = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * np.exp(1j * angle)
  return np.concatenate([rotated.real, rotated.imag], -1)


def sinusoidal(length, width):
  """Rows t: sin(t / 10000^(2i/width)) for every i < width/2, then the cosines."""
  table = np.zeros((length, width))
  for t in range(length):
    for i in range(width // 2):
      angle = t / 10_000 ** (2 * i / width)
      table[t, i], table[t, width // 2 + i] = math.sin(angle), math.cos(angle)
  return table


def softmax(logits):
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


def logits_by_query(q, k, causal):
  """(t, h, logits (B, keys)) for each query t and head h, over the keys that the query attends to."""
  for t in range(q.shape[1]):
    num_keys = t + 1 if causal else k.shape[1]
    for h in range(q.shape[2]):
      yield t, h, np.einsum('bk,bsk->bs', q[:, t, h], k[:, :num_keys, h]) / math.sqrt(q.shape[-1])


def attend(q, k, v, causal, sink=None):
  """softmax(q k^T / sqrt(K)) v of arrays (B, T, H, K); exp(sink[h]) is added to the denominator of head h."""
  out = np.zeros(q.shape)
  for t, h, logits in logits_by_query(q, k, causal):
    for b, row in enumerate(logits):
      exponentials = np.exp(row - row.max())
      total = exponentials.sum() + (0 if sink is None else np.exp(sink[h] - row.max()))
      out[b, t, h] = exponentials @ v[b, : len(row), h] / total
  return out


def entropy_and_largest(q, k, causal, sink=None):
  """The mean entropy of the attention weights of each head, and its largest logit; a sink counts as a key."""
  entropies, largest = [[] for _ in range(q.shape[2])], [-math.inf] * q.shape[2]
  for _, h, logits in logits_by_query(q, k, causal):
    if sink is not None:
      logits = np.concatenate([logits, np.full((len(logits), 1), sink[h])], 1)
    for weights in softmax(logits):
      entropies[h].append(-sum(w * math.log(w) for w in weights if w > 0))
    largest[h] = max(largest[h], logits.max())
  return np.mean(entropies, 1), np.array(largest)


def queries_keys_values(p, x, config):
  width = config.head_dim or config.d_model // config.num_heads
  group = config.num_heads // (config.num_kv_heads or config.num_heads)
  projected = {}
  for name in ('query', 'key', 'value'):
    heads = linear(p[name], x).reshape(*x.shape[:2], -1, width)
    if f'{name}_norm' in p:
      heads = norm(p[f'{name}_norm'], heads, config.norm)
    if config.position == 'rotary' and name != 'value':
      for t in range(x.shape[1]):
        heads[:, t] = rotate(heads[:, t], t)
    projected[name] = heads
  shared = [h // group for h in range(config.num_heads)]
  return projected['query'], projected['key'][:, :, shared], projected['value'][:, :, shared]


def attention(p, x, config):
  out = attend(*queries_keys_values(p, x, config), config.causal, p.get('sink')).reshape(*x.shape[:2], -1)
  if config.attention_gate:
    out = out * sigmoid(linear(p['gate'], x))
  return linear(p['output'], out)


def sublayer(placement, skip, into, branch, a, first, second):
  """One sublayer: `skip` is the stream on the skip path, `into` that entering the branch; `first`, `second` are norms.

  Returns:
    What the branch adds to the stream, and the stream after the sublayer.
  """
  if placement == 'pre':
    added = branch(first(into))
  elif placement == 'sandwich':
    added = second(branch(first(into)))
  elif placement == 'res_post':
    added = first(branch(into))
  else:
    added = branch(into)
  if placement in ('post', 'deepnorm'):
    return added, first(a * skip + added)
  return added, a * skip + added


def sublayers(p, x, config, nudges=None):
  """One block; `nudges` (sublayer, path, B, T, D) are added to x on the skip path and at the input of the branch.

  Returns:
    For each sublayer: the stream before it, what its branch adds, and the stream after it.
  """
  nudges = np.zeros((2, 2, *x.shape)) if nudges is None else nudges

  def branch(name):
    scale = p[f'{name}_scale'] if config.rezero else 1.0
    if name == 'attention':
      return lambda z: scale * attention(p['attention'], z, config)
    return lambda z: scale * feed_forward(p['feed_forward'], z, config.feed_forward)

  def normed(name):
    return lambda z: norm(p[name], z, config.norm)

  if config.parallel:
    a, n = config.attention_residual, normed('attention_norm')
    # The forks are chained on the skip path, so the first nudge on it also enters the second branch.
    skip = x + nudges[0, 0]
    from_attention = branch('attention')(n(x + nudges[0, 1]))
    from_feed_forward = branch('feed_forward')(n(skip + nudges[1, 1]))
    u = a * (skip + nudges[1, 0]) + from_attention
    return [(x, from_attention, u), (x, from_feed_forward, u + from_feed_forward)]
  stream, results = x, []
  for s, name in enumerate(('attention', 'feed_forward')):
    a = (config.attention_residual, config.feed_forward_residual)[s]
    if config.connection == 'deepnorm':
      a = (2 * config.num_layers) ** 0.25
    skip, into = stream + nudges[s, 0], stream + nudges[s, 1]
    norms = normed(f'{name}_norm'), normed(f'{name}_output_norm')
    added, after = sublayer(config.connection, skip, into, branch(name), a, *norms)
    results.append((stream, added, after))
    stream = after
  return results


def block(p, x, config, nudges=None):
  """(u, y): the stream after each sublayer of `sublayers`."""
  return tuple(after for _, _, after in sublayers(p, x, config, nudges))


def layer(tree, index):
  """One layer of a tree of stacked parameters."""
  return {k: layer(v, index) if isinstance(v, dict) else v[index] for k, v in tree.items()}


def transformer(p, tokens, config, nudges=None, output_nudge=0.0):
  """Logits; `nudges` (layer, sublayer, path, B, T, D) and `output_nudge` (B, T, D) as in `block`."""
  x = p['embedding']['token'][tokens]
  if config.position == 'learned':
    x = x + p['embedding']['position'][: tokens.shape[1]]
  if config.position == 'sinusoidal':
    x = x + sinusoidal(tokens.shape[1], config.d_model)
  if config.embedding_norm:
    x = norm(p['embedding_norm'], x, config.norm)
  for index in range(config.num_layers):
    _, x = block(layer(p['blocks'], index), x, config, None if nudges is None else nudges[index])
  x = x + output_nudge
  if config.connection in ('pre', 'sandwich', 'res_post'):
    x = norm(p['final_norm'], x, config.norm)
  if config.tie_embeddings:
    head = p['embedding']['token'].T * (1 if config.init == 'gpt2' else config.d_model**-0.5)
  else:
    head = p['head']['kernel']
  return x @ head + (p['head']['bias'] if config.use_bias else 0.0)
