"""The two sizes that are measured."""

from model import ModelConfig
from training.config import Config, DataConfig, RunConfig

SIZES = {
  'small': Config(  # the default experiments'
    model=ModelConfig(num_layers=12, d_model=64, num_heads=4, unroll=12), run=RunConfig(steps=300, batch_size=16)
  ),
  'medium': Config(
    model=ModelConfig(num_layers=6, d_model=256, num_heads=8, num_positions=256, unroll=6),
    data=DataConfig(sequence_length=256),
    run=RunConfig(steps=300, batch_size=16),
  ),
}
