"""Scale for one GPU or, more slowly, a CPU: 8 layers of width 256, 256 positions.

python train.py --config=configs/small.py
"""

from model import ModelConfig
from training.config import Config, DataConfig, OptimizerConfig, RunConfig


def get_config() -> Config:
  """6.4M parameters; 2,000 steps of 32 sequences: 16M bytes, four epochs of the King James Bible."""
  return Config(
    model=ModelConfig(num_layers=8, d_model=256, num_heads=8, num_positions=256),
    data=DataConfig(sequence_length=256),
    optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=100),
    run=RunConfig(steps=2000, batch_size=32),
  )
