"""The flags of --launcher=slurm: the resources that each run requests from the cluster."""

import dataclasses
import math
import re
import shutil

from absl import flags

from training.config import ConfigError
from training.paths import printable

PARTITION = flags.DEFINE_string('slurm_partition', None, "The partition. Default: the cluster's.")
TIME = flags.DEFINE_string(
  'slurm_time', '1:00:00',
  'Time limit, in the format of sbatch. A run that takes longer saves a checkpoint, is requeued, and resumes.',
)  # fmt: skip
GPUS = flags.DEFINE_integer('slurm_gpus', None, 'GPUs per run. Default: none are requested.', lower_bound=1)
CPUS = flags.DEFINE_integer('slurm_cpus', None, "CPU cores per run. Default: the cluster's.", lower_bound=1)
MEMORY = flags.DEFINE_string('slurm_mem', None, "Memory per run, such as 16G. Default: the cluster's.")
ACCOUNT = flags.DEFINE_string('slurm_account', None, "The account to charge. Default: the user's.")
ALL_FLAGS = (PARTITION, TIME, GPUS, CPUS, MEMORY, ACCOUNT)

SAVE_TIME = 90  # seconds from SIGUSR2 to the time limit
TIME_FORMAT = re.compile(r'(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,4}))?(?::(\d{1,4}))?', re.ASCII)
# The formats are strict, because the values go into the batch script, where a line break would add a command.
NAMES = r'[A-Za-z0-9_][A-Za-z0-9_.+-]*(,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*'
FORMATS = (
  (PARTITION, NAMES, 'write a name, or several separated by commas, as in --slurm_partition=gpu'),
  (ACCOUNT, NAMES, 'write a name, as in --slurm_account=lab'),
  (MEMORY, r'[0-9]{1,9}([KMGT]B?)?', 'write a size, as in --slurm_mem=16G'),
)


@dataclasses.dataclass(frozen=True)
class Resources:
  """The resources that a run requests from Slurm; None: the cluster's default.

  Attributes:
    minutes: the time limit, after which the run is requeued.
    partition, gpus, cpus, memory, account: as in sbatch.
  """

  minutes: int
  partition: str | None = None
  gpus: int | None = None
  cpus: int | None = None
  memory: str | None = None
  account: str | None = None


def from_flags() -> Resources:
  """The resources that the flags request.

  Raises:
    ConfigError: if submitit is not installed, or a flag is not in the format of sbatch.
  """
  try:
    import submitit  # noqa: F401
  except ImportError:
    raise ConfigError(
      '--launcher=slurm needs submitit: pip install -r requirements-slurm.txt, in the environment that runs this'
    ) from None
  for flag, pattern, remedy in FORMATS:
    if flag.value is not None and not re.fullmatch(pattern, flag.value, re.ASCII | re.IGNORECASE):
      raise ConfigError(f'--{flag.name}={printable(flag.value)}: {remedy}')
  return Resources(parse_time(TIME.value), PARTITION.value, GPUS.value, CPUS.value, MEMORY.value, ACCOUNT.value)


def check_unused() -> None:
  """Raises ConfigError if a flag of --launcher=slurm is set."""
  for flag in ALL_FLAGS:
    if flag.present:
      raise ConfigError(f'--{flag.name} requires --launcher=slurm: add that, or omit this flag')


def check_available() -> None:
  """Raises ConfigError if the commands of Slurm are not installed."""
  for name in ('sbatch', 'srun', 'squeue'):
    if shutil.which(name) is None:
      raise ConfigError(
        f'--launcher=slurm: {name} was not found; run this on a machine with Slurm, such as the login node of a '
        'cluster, or add --dry_run'
      )


def parse_time(text: str) -> int:
  """Parses a time limit in a format of sbatch: m, m:s, h:m:s, d-h, d-h:m or d-h:m:s.

  Returns:
    Minutes, rounded up.

  Raises:
    ConfigError: if the format is wrong, or the time is too short to train and save a checkpoint.
  """
  match = TIME_FORMAT.fullmatch(text)
  if match is None:
    raise ConfigError(
      f'--slurm_time={printable(text)}: write minutes, hours:minutes:seconds or days-hours, as in 2:00:00'
    )
  days, *numbers = (None if part is None else int(part) for part in match.groups())
  parts = [part for part in numbers if part is not None]
  if days is None and len(parts) < 3:
    parts = [0, *parts]
  hours, minutes, seconds = (*parts, 0, 0)[:3]
  total = math.ceil((((days or 0) * 24 + hours) * 60 + minutes) + seconds / 60)
  if total * 60 < 2 * SAVE_TIME:
    raise ConfigError(
      f'--slurm_time={text}: must be at least 3 minutes, since the last {SAVE_TIME} s are reserved for saving'
    )
  return total
