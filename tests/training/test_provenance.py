import json
import os
import subprocess
import sys

import jax
import made_result
import pytest
from jax._src import config as jax_config

from training import provenance
from training.code_version import PROJECT, code_version
from training.files import read_json, write_sealed
from training.host import processor
from training.provenance import environment, settings
from training.run_files.environment import provenance_changes, record_environment


def test_the_settings_of_a_plain_process_are_recorded_by_name():
  found = settings()
  assert {name: found[name] for name in ('jax_default_prng_impl', 'jax_enable_x64', 'jax_threefry_partitionable')} == {
    'jax_default_prng_impl': 'threefry2x32', 'jax_enable_x64': False, 'jax_threefry_partitionable': True,
  }  # fmt: skip
  assert found['jax_numpy_dtype_promotion'] == 'standard'
  assert found['python'] == '.'.join(map(str, sys.version_info[:3]))
  assert {'XLA_FLAGS', 'LIBTPU_INIT_ARGS', 'NVIDIA_TF32_OVERRIDE', 'jax_default_matmul_precision'} <= found.keys()
  assert json.loads(json.dumps(found, allow_nan=False)) == found


# The settings that a compiled function depends on in JAX 0.10.2, but that affect no numbers here: checks, errors,
# debugging, contexts that only code enters, and the representation of constants, meshes and names in a program.
NO_NUMBERS = {
  'abstract_mesh_context_manager', 'axis_env_state', 'check_vma', 'compute_on_context_manager', 'jax_auto_pcast',
  'jax_check_static_indices', 'jax_debug_key_reuse', 'jax_embedded_constants_max_bytes',
  'jax_error_checking_behavior_divide', 'jax_error_checking_behavior_nan', 'jax_error_checking_behavior_oob',
  'jax_hlo_source_file_canonicalization_regex', 'jax_mutable_array_checks', 'jax_no_execution',
  'jax_numpy_rank_promotion', 'jax_pallas_enable_debug_checks', 'jax_pgle_profiling_runs',
  'jax_remove_size_one_mesh_axis_from_type', 'jax_use_emit_pipeline_primitive', 'jax_use_simplified_jaxpr_constants',
  'mesh_context_manager', 'pallas_tpu_interpret_mode_context_manager', 'user_context', 'xla_metadata_context_manager',
}  # fmt: skip


def test_every_setting_that_programs_depend_on_is_classified():
  """A new version of JAX has other settings: add each to JAX_SETTINGS or to NO_NUMBERS."""
  assert jax.__version__ == '0.10.2'
  recorded = set(provenance.JAX_SETTINGS)
  assert recorded <= jax.config.values.keys()
  assert recorded.isdisjoint(NO_NUMBERS)
  assert set(jax_config.trace_context_names()) - recorded == NO_NUMBERS


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from training.provenance import settings
print(json.dumps(settings()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'value', 'recorded', 'as_'),
  [
    ('JAX_DEFAULT_PRNG_IMPL', 'rbg', 'jax_default_prng_impl', 'rbg'),
    ('JAX_DEFAULT_MATMUL_PRECISION', 'bfloat16', 'jax_default_matmul_precision', 'bfloat16'),
    ('JAX_THREEFRY_PARTITIONABLE', '0', 'jax_threefry_partitionable', False),
    ('JAX_RANDOM_SEED_OFFSET', '7', 'jax_random_seed_offset', 7),
    ('JAX_ENABLE_X64', '1', 'jax_enable_x64', True),
    ('JAX_SOFTMAX_CUSTOM_JVP', '1', 'jax_softmax_custom_jvp', True),
    ('XLA_FLAGS', '--xla_cpu_enable_fast_math=true', 'XLA_FLAGS', '--xla_cpu_enable_fast_math=true'),
    ('CUBLAS_WORKSPACE_CONFIG', ':4096:8', 'CUBLAS_WORKSPACE_CONFIG', ':4096:8'),
  ],
)
def test_a_setting_from_the_environment_is_recorded(name, value, recorded, as_):
  command = [sys.executable, '-c', SCRIPT, str(PROJECT)]
  plain, changed = (
    json.loads(subprocess.run(command, env=os.environ | more, check=True, capture_output=True, text=True).stdout)
    for more in ({}, {name: value})
  )
  assert {key: value for key, value in changed.items() if plain.get(key) != value} == {recorded: as_}


def test_memory_settings_are_not_recorded(monkeypatch):
  before = settings()
  monkeypatch.setenv('XLA_PYTHON_CLIENT_MEM_FRACTION', '.5')
  assert settings() == before
  monkeypatch.setenv('XLA_FLAGS', '--xla_gpu_deterministic_ops=true')
  assert settings() == before | {'XLA_FLAGS': '--xla_gpu_deterministic_ops=true'}


def test_the_device_of_a_cpu_names_its_model():
  assert environment()['device'].startswith('cpu (')
  assert processor()
  assert processor() in environment()['device']


def test_a_changed_environment_gives_a_note_with_the_changes(tmp_path):
  assert record_environment(tmp_path, 'one', resumed=False) is None
  assert record_environment(tmp_path, 'one', resumed=True) is None
  path = tmp_path / 'environment.json'
  recorded = read_json(path)
  assert recorded['code'] == code_version()
  versions, rbg = (
    recorded['versions'] | {'jax': '0.1'},
    recorded['settings'] | {'jax_default_prng_impl': 'rbg', 'XLA_OLD': '1'},
  )
  write_sealed(path, recorded | {'layout': '8 tpu device(s)', 'versions': versions, 'settings': rbg})
  note = record_environment(tmp_path, 'one', resumed=True)
  for what in (
    'layout was 8 tpu device(s), is 1 cpu device(s)', f'jax was 0.1, is {jax.__version__}',
    'jax_default_prng_impl was rbg, is threefry2x32', 'XLA_OLD was 1, is None',
  ):  # fmt: skip
    assert what in note
  assert note.count(' was ') == 4
  assert record_environment(tmp_path, 'one', resumed=True) is None


def test_other_code_or_settings_than_a_run_was_trained_with_are_reported(tmp_path):
  assert provenance_changes(tmp_path) == []
  made_result.finish(tmp_path, code=code_version(), settings=settings())
  assert provenance_changes(tmp_path) == []
  made_result.finish(
    tmp_path,
    code=code_version() | {'digest': '7' * 64, 'revision': None},
    settings=settings() | {'jax_enable_x64': True},
  )
  by_code, by_settings = provenance_changes(tmp_path)
  assert by_code.startswith(f'{tmp_path} was trained by code (digest 77777777) other than that measuring it now (')
  assert by_settings == f'{tmp_path} was trained with other settings (jax_enable_x64 was True, is False)'
