"""Scale of the default experiments: 12 layers that train in about half a minute on one laptop core.

python train.py --config=configs/tiny.py
"""

from model import ModelConfig
from training.config import Config


def get_config() -> Config:
  """12 layers, width 64, 64 positions, 300 steps of 16 sequences: 0.6M parameters, 0.3M bytes."""
  return Config(model=ModelConfig(num_layers=12, d_model=64, num_heads=4, unroll=12))
