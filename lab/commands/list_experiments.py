"""--list: all experiments, and the experiment files that cannot be used."""

from rich.console import Console

from lab.cli.tables import new_table
from lab.core import registry
from training.config import ConfigError


def list_experiments(console: Console, file: str | None = None) -> None:
  """Prints every experiment with its question and variants, and the error in each file that cannot be used.

  Args:
    console: where to print.
    file: the path of another experiment file to list, if any.

  Raises:
    ConfigError: if this file cannot be used.
  """
  own = [registry.load_experiment(file)] if file else []
  columns = ('experiment', 'question', 'variants (the first is the baseline)', 'seeds')
  table = new_table(columns=columns, left=3, fold=True)  # names that differ only in their last letters stay distinct
  unusable = registry.unreadable_files()
  for name in registry.experiment_names():
    try:
      experiment = registry.find_experiment(name)
    except ConfigError as error:
      unusable.append(str(error))
      continue
    table.add_row(name, experiment.question, ', '.join(experiment.variants), str(len(experiment.seeds)))
  for experiment in own:
    table.add_row(experiment.name, experiment.question, ', '.join(experiment.variants), str(len(experiment.seeds)))
  console.print(table)
  for line in unusable:
    console.print(f'cannot be used: {" ".join(line.split())}', soft_wrap=True)
