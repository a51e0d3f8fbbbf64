"""The new names of modules that have moved, for experiment files that import them by the old names."""

import ast
from collections.abc import Iterator
from pathlib import Path

MOVED = {  # several new names if the module was split
  'experiments.by_hand': ('lab.reproduce.model_parts',),
  'experiments.experiment': ('lab.core.experiment',),
  'experiments.figure_style': ('lab.figures.figure_style',),
  'experiments.figures': ('lab.figures.experiment_figures',),
  'experiments.final_loss': ('lab.figures.final_loss_figure',),
  'experiments.gradient_figures': ('lab.inspect.gradient_figures',),
  'experiments.gradient_files': ('lab.inspect.gradient_files',),
  'experiments.gradient_table': ('lab.inspect.gradient_table',),
  'experiments.gradients': ('lab.inspect.gradients',),
  'experiments.grid': ('lab.reproduce.learning_rate_grid',),
  'experiments.inspected_run': ('lab.inspect.run_steps',),
  'experiments.names': ('lab.core.names',),
  'experiments.ngram_baselines': ('lab.analysis.ngram_baselines',),
  'experiments.plan': ('lab.core.plan', 'lab.core.run'),
  'experiments.registry': ('lab.core.registry',),
  'experiments.reproduction': ('lab.core.reproduction',),
  'experiments.results': ('lab.analysis.results',),
  'experiments.run_files': ('lab.analysis.find_results',),
  'experiments.runs': ('lab.analysis.experiment_runs', 'lab.analysis.recorded_run', 'lab.analysis.load_runs'),
  'experiments.statistics': ('lab.analysis.statistics',),
  'experiments.stream_gradients': ('lab.analysis.stream_gradients',),
  'experiments.summary': ('lab.analysis.summary',),
  'experiments.table': ('lab.cli.tables',),
  'experiments.time_figure': ('lab.figures.training_time_figure',),
  'experiments.trained': ('lab.reproduce.training_runs',),
  'experiments.training_figures': ('lab.figures.training_figures',),
  'experiments.tuning': ('lab.analysis.tuning_results',),
  'experiments.words': ('lab.analysis.verdict_wording', 'lab.analysis.wording'),
  'model.attention_kernels': ('model.kernels.plain_attention', 'model.kernels.dispatch'),
  'model.blocked_attention': ('model.kernels.blocked_attention',),
  'model.observation': ('model.forward_statistics',),
  'model.recompute': ('model.kernels.recompute',),
  'training.checkpoint': ('training.run_files.checkpoint',),
  'training.corpus': ('training.data.corpus', 'training.data.splits', 'training.data.tokenization'),
  'training.data': ('training.data.loading', 'training.data.batches'),
  'training.held_out': ('training.data.evaluation_subset',),
  'training.locks': ('training.run_files.locks',),
  'training.metrics_log': ('training.run_files.metrics_log',),
  'training.ngrams': ('training.data.ngrams',),
  'training.reading': ('training.data.regular_files',),
  'training.result': ('training.run_files.result',),
  'training.run_directory': ('training.run_files.run_directory',),
  'training.stored_run': ('training.run_files.stored_run',),
  'training.synthetic': ('training.data.synthetic_tasks',),
  'training.text': ('training.data.documents',),
  'training.tokenizer': ('training.data.tokenizer',),
  'training.trained_run': ('training.run_files.trained_run',),
}


def describe_move(path: Path, line: int) -> str | None:
  """The new name of a module that a file imports: 'experiments.grid is now lab.reproduce.learning_rate_grid'.

  Args:
    path: a Python file.
    line: the line of the import statement that failed.

  Returns:
    None if the statement imports no module that has moved.
  """
  for module in _imported(path, line):
    if module in MOVED:
      *others, last = MOVED[module]
      return f'{module} is now split into {", ".join(others)} and {last}' if others else f'{module} is now {last}'
  return None


def _imported(path: Path, line: int) -> Iterator[str]:
  for node in ast.walk(ast.parse(path.read_bytes())):
    if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno <= line <= (node.end_lineno or node.lineno):
      if isinstance(node, ast.ImportFrom):
        yield from (f'{node.module}.{alias.name}' for alias in node.names)
        yield node.module or ''
      else:
        yield from (alias.name for alias in node.names)
