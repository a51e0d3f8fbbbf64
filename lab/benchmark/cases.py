"""The training steps, at two model sizes, that several benchmarks measure."""

from lab.benchmark.trials import Case
from lab.launch import devices
from model import ModelConfig
from training.config import Config, DataConfig, RunConfig

ENVIRONMENT = devices.cpu_environment(several=False)  # as for a run; PyTorch gets the same memory allocator settings
SIZES = {
  'small': Config(  # as in the default experiments
    model=ModelConfig(num_layers=12, d_model=64, num_heads=4, unroll=12), run=RunConfig(steps=300, batch_size=16)
  ),
  'medium': Config(
    model=ModelConfig(num_layers=6, d_model=256, num_heads=8, num_positions=256, unroll=6),
    data=DataConfig(sequence_length=256),
    run=RunConfig(steps=300, batch_size=16),
  ),
}


def training_case(name: str, config: Config, cores: tuple[int | None, ...] = (None,), device_count: int = 1) -> Case:
  """Training steps of a config on some cores, data-parallel over this many CPU devices."""
  config = config.replace({'mesh.data': device_count})
  environment = devices.cpu_environment(several=device_count > 1) | {'JAX_NUM_CPU_DEVICES': str(device_count)}
  return Case(name, {'config': config.to_flat()}, cores=cores, environment=environment)


def tokens_per_step(config: Config, cores: tuple[int | None, ...]) -> int:
  """The number of tokens in one step of all workers."""
  return len(cores) * config.run.batch_size * config.data.sequence_length
