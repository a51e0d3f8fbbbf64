"""Scores held-out sequences batch by batch: reports progress, stops on request, resumes after the last scored batch."""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from training.config import Config, ConfigError
from training.data.batches import evaluation_batches
from training.data.dataset import Dataset
from training.digests import array_checksums
from training.files import Damaged, checksum_of, read_json, write_sealed
from training.mesh import own_rows
from training.programs import Programs, evaluation_size

FILE = 'evaluation.json'
SAVE_SECONDS = 30.0  # between saves of the sums, in case the process is killed without warning
REPORT_SECONDS = 1.0  # between reports of progress


class Stopped(Exception):  # noqa: N818 - not an error
  """The run was asked to stop, and has saved its progress; the next start resumes from there."""


class Sums(NamedTuple):
  """The summed nats and the number of scored tokens of each batch, in order."""

  nats: list[float]
  scored: list[float]

  @property
  def mean(self) -> float:
    """The mean loss in nats per token."""
    return float(np.sum(self.nats, dtype=float) / np.sum(self.scored, dtype=float))


class Scoring:
  """One evaluation of one set of parameters, which may take several starts of a run.

  The sums of each batch are stored in `evaluation.json` in the run's directory, when the evaluation is stopped and
  every half minute. They are reused only for the same parameters, data, program and code, so that a resumed evaluation
  gives the same bits. If several processes train a run together, the first one reads and writes the file, and sends
  the others what it read.
  """

  def __init__(
    self,
    config: Config,
    programs: Programs,
    params: Any,
    directory: Path | None = None,
    depends_on: dict[str, Any] | None = None,
    report: Callable[[dict[str, Any]], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
  ):
    """Reads the sums of an evaluation of these parameters that was stopped, if there are any.

    Args:
      config: the run's config.
      programs: its compiled programs.
      params: to evaluate.
      directory: the run's directory; None: no sums are stored.
      depends_on: everything else that the sums depend on, as JSON.
      report: receives progress, {'evaluating': name, 'done': tokens, 'of': tokens}.
      stop: called after every batch; returns whether to stop.
    """
    self._config, self._programs, self._params = config, programs, params
    self._path = directory / FILE if directory else None
    self._depends_on, self._report, self._stop = depends_on or {}, report, stop
    self._writes = jax.process_index() == 0
    self._sums = self._read()
    self._reported = self._saved = time.monotonic()

  def mean_loss(self, name: str, source: Dataset, sequences: int | None = None) -> float:
    """The mean loss over a dataset, or over `sequences` of it, evenly spread; NaN if any batch's is not finite.

    Args:
      name: a name for this part of the evaluation, unique within it.
      source: what to score.
      sequences: how many of its sequences; None: all.

    Raises:
      Stopped: if `stop` returned True; the sums are saved.
    """
    size = evaluation_size(self._config, self._programs.mesh.size)
    count = len(source) if sequences is None else min(len(source), sequences)
    batches, per_batch = -(-count // size), size * self._config.data.sequence_length
    sums = self._sums.setdefault(f'{name}: {count} sequences', Sums([], []))
    done = len(sums.nats)
    rows = own_rows(self._programs.mesh, size)
    dispatched = (
      self._programs.evaluation_step(self._params, batch)
      for batch in evaluation_batches(source, size, sequences, rows, first=done)
    )
    for number, (nats, scored) in enumerate(_one_ahead(dispatched), done + 1):
      if not math.isfinite(nats):
        return math.nan  # then the mean is not finite either
      sums.nats.append(float(nats))
      sums.scored.append(float(scored))
      self._on_progress(name, number * per_batch, batches * per_batch)
      if self._stop():
        self._save()
        raise Stopped
    if 0 < done < batches:
      self._save()  # so that this part is finished at the next start, even if that stops in another part
    return sums.mean

  def close(self) -> None:
    """Deletes the stored sums, after the result is written."""
    if self._path and self._writes:
      self._path.unlink(missing_ok=True)

  def _on_progress(self, name: str, done: int, of: int) -> None:
    now = time.monotonic()
    if now - self._reported >= REPORT_SECONDS:
      self._reported = now
      self._report({'evaluating': name, 'done': done, 'of': of})
    if now - self._saved >= SAVE_SECONDS and jax.process_count() == 1:
      self._saved = now
      self._save()

  def _key(self) -> str:
    checksums = {name: int(value) for name, value in jax.device_get(array_checksums(self._params)).items()}
    return checksum_of({**self._depends_on, 'parameters': checksums})

  def _save(self) -> None:
    if self._path is None:
      return
    if self._writes and not self._path.parent.is_dir():
      return  # the run was moved; its directory must not be created again
    key = self._key()  # computed by all processes, since the parameters may be distributed over them
    if self._writes:
      write_sealed(self._path, {'key': key, 'sums': {name: sums._asdict() for name, sums in self._sums.items()}})

  def _read(self) -> dict[str, Sums]:
    """The stored sums; empty if there are none, or the file is damaged or belongs to other parameters."""
    several = jax.process_count() > 1
    exists = self._path is not None and self._path.exists()
    if several:
      exists = bool(multihost_utils.broadcast_one_to_all(np.int32(exists)))
    if self._path is None or not exists:
      return {}
    found = _parse(self._path, self._key())
    return _from_first(found) if several else found


def _parse(path: Path, key: str) -> dict[str, Sums]:
  try:
    stored = read_json(path, sealed=lambda content: True) or {}
    return {name: Sums(**sums) for name, sums in stored['sums'].items()} if stored['key'] == key else {}
  except (Damaged, ConfigError, KeyError, TypeError):
    return {}  # only time is lost: the batches are scored again


def _from_first(sums: dict[str, Sums]) -> dict[str, Sums]:
  """The sums that the first process has read, sent to the others as JSON text."""
  text = np.frombuffer(json.dumps({name: one._asdict() for name, one in sums.items()}).encode(), np.uint8)
  length = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
  text = multihost_utils.broadcast_one_to_all(np.resize(text, length))
  return {name: Sums(**one) for name, one in json.loads(np.asarray(text, np.uint8).tobytes()).items()}


def _one_ahead(results: Iterable[Any]) -> Iterable[Any]:
  """Yields each result after the next one is dispatched: so a GPU or TPU never waits for Python."""
  before = None
  for result in itertools.chain(results, [None]):
    if before is not None:
      yield jax.device_get(before)
    before = result
