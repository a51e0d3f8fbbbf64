"""Scale for one large GPU: the shape of GPT-2 small (Radford et al. 2019), 12 layers of width 768, 1,024 positions.

python train.py --config=configs/base.py
python train.py --config=configs/base.py --config.data.task=files --config.data.paths='text/*.txt' --name=my_text
"""

from model import ModelConfig
from training.config import Config, DataConfig, OptimizerConfig, RunConfig


def get_config() -> Config:
  """86M parameters with bytes as tokens, 124M with 50,304 tokens; bfloat16; 2,000 steps of 32 sequences: 66M bytes."""
  return Config(
    model=ModelConfig(
      num_layers=12, d_model=768, num_heads=12, position='learned', num_positions=1024, tie_embeddings=True,
      norm='layer', feed_forward='gelu', init='gpt2', dtype='bfloat16', unroll=1,
    ),
    data=DataConfig(sequence_length=1024),
    optimizer=OptimizerConfig(learning_rate=6e-4, warmup_steps=200),
    run=RunConfig(steps=2000, batch_size=32),
  )  # fmt: skip
