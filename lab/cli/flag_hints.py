"""Suggests a flag for an unknown one: the equivalent of a flag of another tool, otherwise the most similar name."""

import difflib
from collections.abc import Iterable

from training.known_names import nearest_name

LEARNING_RATE = ('config.optimizer.learning_rate', 'shared_learning_rate')
# Name in other tools -> our flags. The first that the command has is suggested; for LEARNING_RATE, both are.
SYNONYMS: dict[str, tuple[str, ...]] = {
  **dict.fromkeys(('learning_rate', 'lr', 'peak_lr', 'max_lr', 'base_lr'), LEARNING_RATE),
  **dict.fromkeys(
    ('steps', 'num_steps', 'max_steps', 'train_steps', 'max_iters', 'iterations', 'iters', 'total_steps'),
    ('config.run.steps',),
  ),
  **dict.fromkeys(('epochs', 'num_epochs', 'max_epochs', 'num_train_epochs'), ('config.run.steps',)),
  **dict.fromkeys(('layers', 'n_layer', 'n_layers', 'num_layer', 'depth', 'num_blocks'), ('config.model.num_layers',)),
  **dict.fromkeys(('heads', 'n_head', 'n_heads', 'num_head'), ('config.model.num_heads',)),
  **dict.fromkeys(
    ('width', 'dim', 'n_embd', 'embed_dim', 'hidden_size', 'hidden_dim', 'emb_dim'), ('config.model.d_model',)
  ),
  **dict.fromkeys(('bs', 'batch', 'batchsize', 'train_batch_size'), ('config.run.batch_size',)),
  **dict.fromkeys(
    ('seq_len', 'seqlen', 'max_length', 'context', 'context_length', 'block_size', 'seq_length'),
    ('config.data.sequence_length',),
  ),
  **dict.fromkeys(('seed', 'random_seed'), ('seeds', 'config.run.init_seed')),
  **dict.fromkeys(('wd', 'decay'), ('config.optimizer.weight_decay',)),
  **dict.fromkeys(('warmup', 'num_warmup_steps'), ('config.optimizer.warmup_steps',)),
  **dict.fromkeys(('grad_clip', 'clip_norm', 'max_grad_norm'), ('config.optimizer.clip',)),
  **dict.fromkeys(('optimizer', 'optim'), ('config.optimizer.name',)),
  **dict.fromkeys(('scheduler', 'lr_schedule'), ('config.optimizer.schedule',)),
  **dict.fromkeys(('grad_accum', 'gradient_accumulation_steps'), ('config.optimizer.accumulate',)),
  **dict.fromkeys(('dataset', 'data', 'corpus'), ('config.data.task',)),
  **dict.fromkeys(('data_path', 'data_dir', 'text', 'train_file', 'files'), ('config.data.paths',)),
  **dict.fromkeys(('activation', 'act', 'mlp', 'ffn'), ('feed_forward',)),
  **dict.fromkeys(('normalization', 'norm_type', 'layernorm'), ('config.model.norm',)),
  **dict.fromkeys(('norm_placement', 'pre_norm', 'post_norm', 'prenorm', 'postnorm', 'norm_first'), ('connection',)),
  **dict.fromkeys(('out', 'output', 'outdir', 'out_dir', 'output_dir', 'logdir', 'save_dir'), ('workdir',)),
  **dict.fromkeys(('jobs', 'num_workers', 'parallel', 'n_jobs'), ('workers',)),
  **dict.fromkeys(('variant', 'ablation'), ('variants',)),
  **dict.fromkeys(('exp', 'task'), ('experiment',)),
  **dict.fromkeys(('checkpoint', 'init', 'load', 'pretrained'), ('init_from',)),
  **dict.fromkeys(('dryrun', 'plan'), ('dry_run',)),
}
ADVICE = {
  'epochs': 'the length of training is set in steps',
  'num_epochs': 'the length of training is set in steps',
  'max_epochs': 'the length of training is set in steps',
  'num_train_epochs': 'the length of training is set in steps',
}
UNNEEDED = {  # flags of other tools that need no counterpart
  'resume': 'run the same command again to resume from the last checkpoint',
  'continue': 'run the same command again to resume from the last checkpoint',
  'force': 'existing runs are never overwritten: use another --workdir to start over',
  'overwrite': 'existing runs are never overwritten: use another --workdir to start over',
  'device': 'JAX uses a GPU or TPU if one is available; set JAX_PLATFORMS=cpu in the environment to use the CPU',
}


def flag_hint(name: str, known: Iterable[str]) -> str:
  """Returns a hint to append to the message about an unknown flag.

  Args:
    name: the unknown flag, without dashes.
    known: the flags of the command.
  """
  known, plain = list(known), name.lower().replace('-', '_')
  if plain in UNNEEDED:
    return f': {UNNEEDED[plain]}'
  last = plain.rpartition('.')[2]
  by_last = {flag.rpartition('.')[2]: flag for flag in known}
  suggested = [flag for flag in SYNONYMS.get(plain, ()) if flag in known]
  if len(suggested) == len(LEARNING_RATE) and SYNONYMS[plain] is LEARNING_RATE:
    return _suggest(suggested, 'the first for a custom run, the second for all variants of an experiment')
  if suggested:
    return _suggest(suggested[:1], ADVICE.get(plain, ''))
  same = [flag for flag in known if flag.rpartition('.')[2] == last]
  if same and plain not in known:
    return _suggest(same, '')
  near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.75)
  return _suggest([by_last[near[0]]], '') if near else nearest_name(name, known)


def _suggest(flags: list[str], reason: str) -> str:
  suffix = f' ({reason})' if reason else ''
  return f': did you mean {" or ".join(map(repr, flags))}?{suffix}'
