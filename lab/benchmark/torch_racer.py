"""A racer of PyTorch's: training steps of a peer at the same work. Started by racing.py, told in JSON what to do.

  {"peer": "encoder" | "x_transformers", "compiled": true, "layers": 6, "width": 256, "heads": 8, "length": 256,
   "batch": 16, "vocabulary": 256, "core": null}

`encoder` is a stack of nn.TransformerEncoderLayer, the norm first, with a causal mask and learned positions;
`x_transformers` its Decoder with RMSNorm, SwiGLU of two thirds of the width, rotary positions and flash attention.
Both are trained as BlockLab's: float32, AdamW, the global gradient norm clipped to 1.
"""

import json
import sys

import torch
from torch import nn
from torch.nn import functional

from lab.benchmark import serving


class Encoder(nn.Module):
  """PyTorch's own layers."""

  def __init__(self, work: dict):
    super().__init__()
    width, length = work['width'], work['length']
    self.token, self.position = nn.Embedding(work['vocabulary'], width), nn.Embedding(length, width)
    layer = nn.TransformerEncoderLayer(
      width, work['heads'], 4 * width, dropout=0.0, activation='gelu', batch_first=True, norm_first=True, bias=False
    )
    self.layers = nn.TransformerEncoder(
      layer, work['layers'], norm=nn.LayerNorm(width, bias=False), enable_nested_tensor=False
    )
    self.head = nn.Linear(width, work['vocabulary'], bias=False)
    self.register_buffer('mask', nn.Transformer.generate_square_subsequent_mask(length))
    self.register_buffer('positions', torch.arange(length))

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    """Logits."""
    stream = self.token(tokens) + self.position(self.positions)
    return self.head(self.layers(stream, mask=self.mask, is_causal=True))


def x_transformers(work: dict) -> nn.Module:
  """A decoder of the library of this name."""
  from x_transformers import Decoder, TransformerWrapper

  layers = Decoder(
    dim=work['width'], depth=work['layers'], heads=work['heads'], attn_dim_head=work['width'] // work['heads'],
    attn_flash=True, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_mult=8 / 3, ff_no_bias=True,
  )  # fmt: skip
  return TransformerWrapper(
    num_tokens=work['vocabulary'], max_seq_len=work['length'], use_abs_pos_emb=False, attn_layers=layers
  )


def main() -> None:
  """Serves training steps."""
  work = json.loads(sys.argv[1])
  torch.set_num_threads(serving.pin(work['core']))
  torch.manual_seed(0)
  model = Encoder(work) if work['peer'] == 'encoder' else x_transformers(work)
  optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
  inputs, targets = torch.randint(work['vocabulary'], (2, work['batch'], work['length']))
  forward = torch.compile(model) if work['compiled'] else model

  def take(count: int) -> None:
    for _ in range(count):
      optimizer.zero_grad(set_to_none=True)
      loss = functional.cross_entropy(forward(inputs).flatten(0, 1), targets.flatten())
      loss.backward()
      nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()

  serving.serve(take, {'parameters': sum(parameter.numel() for parameter in model.parameters())})


if __name__ == '__main__':
  main()
