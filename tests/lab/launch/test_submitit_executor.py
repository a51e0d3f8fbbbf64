import submitit

from lab.launch import submitit_executor


def test_the_private_parts_are_those_of_this_version_of_submitit():
  """For a newer submitit: check submitit/slurm/slurm.py, then update the version here and in the module."""
  assert submitit.__version__ == '1.5.4'
  assert submitit.__version__ in submitit_executor.__doc__
  assert hasattr(submitit.SlurmExecutor, '_make_submission_file_text')
  assert hasattr(submitit.SlurmExecutor, '_submitit_command_str')
