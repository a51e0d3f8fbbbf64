"""A benchmark worker for PyTorch models of the same depth and width as those of BlockLab.

trials.py starts it with a JSON object that describes the model:

  {"peer": "encoder" | "x_transformers", "compiled": true, "layers": 6, "width": 256, "heads": 8, "length": 256,
   "batch": 16, "vocabulary": 256, "core": null}

`encoder` is a stack of nn.TransformerEncoderLayer with Pre-Norm, a causal mask and learned positions; `x_transformers`
is the Decoder of that library with RMSNorm, SwiGLU of two thirds of the width, rotary embedding and flash attention.
Both are trained like BlockLab models: float32, AdamW, global gradient norm clipped to 1.
"""

import json
import sys

import torch
from torch import nn
from torch.nn import functional

from lab.benchmark.worker_protocol import pin_to_core, serve


class Encoder(nn.Module):
  """A causal language model of PyTorch's own layers."""

  def __init__(self, task: dict):
    super().__init__()
    width, length = task['width'], task['length']
    self.token, self.position = nn.Embedding(task['vocabulary'], width), nn.Embedding(length, width)
    layer = nn.TransformerEncoderLayer(
      width, task['heads'], 4 * width, dropout=0.0, activation='gelu', batch_first=True, norm_first=True, bias=False
    )
    self.layers = nn.TransformerEncoder(
      layer, task['layers'], norm=nn.LayerNorm(width, bias=False), enable_nested_tensor=False
    )
    self.head = nn.Linear(width, task['vocabulary'], bias=False)
    self.register_buffer('mask', nn.Transformer.generate_square_subsequent_mask(length))
    self.register_buffer('positions', torch.arange(length))

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    """The logits, (B, T, V)."""
    stream = self.token(tokens) + self.position(self.positions)
    return self.head(self.layers(stream, mask=self.mask, is_causal=True))


def x_transformers(task: dict) -> nn.Module:
  """A decoder of the library x-transformers."""
  from x_transformers import Decoder, TransformerWrapper

  layers = Decoder(
    dim=task['width'], depth=task['layers'], heads=task['heads'], attn_dim_head=task['width'] // task['heads'],
    attn_flash=True, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_mult=8 / 3, ff_no_bias=True,
  )  # fmt: skip
  return TransformerWrapper(
    num_tokens=task['vocabulary'], max_seq_len=task['length'], use_abs_pos_emb=False, attn_layers=layers
  )


def main() -> None:
  """Serves training steps of the model that the command line describes."""
  task = json.loads(sys.argv[1])
  torch.set_num_threads(pin_to_core(task['core']))
  torch.manual_seed(0)
  model = Encoder(task) if task['peer'] == 'encoder' else x_transformers(task)
  optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
  inputs, targets = torch.randint(task['vocabulary'], (2, task['batch'], task['length']))
  forward = torch.compile(model) if task['compiled'] else model

  def iterate(count: int) -> None:
    for _ in range(count):
      optimizer.zero_grad(set_to_none=True)
      loss = functional.cross_entropy(forward(inputs).flatten(0, 1), targets.flatten())
      loss.backward()
      nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()

  serve(iterate, {'parameters': sum(parameter.numel() for parameter in model.parameters())})


if __name__ == '__main__':
  main()
