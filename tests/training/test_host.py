import os

import pytest

from training import host
from training.provenance import environment


def quota_of(tmp_path, groups_of_process, files):
  (tmp_path / 'cgroup').write_text(groups_of_process)
  for name, content in files.items():
    path = tmp_path / 'groups' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
  return host.cpu_quota(tmp_path / 'cgroup', tmp_path / 'groups')


V1 = '9:name=systemd:/\n5:cpu,cpuacct:/docker/c0ffee\n4:memory:/docker/c0ffee\n0::/\n'


@pytest.mark.parametrize(
  ('groups_of_process', 'files', 'quota'),
  [
    ('0::/\n', {}, None),
    ('0::/\n', {'cpu.max': 'max 100000\n'}, None),
    ('0::/\n', {'cpu.max': '200000 100000\n'}, 2),  # docker run --cpus=2 with a private cgroup namespace
    ('0::/\n', {'cpu.max': '50000 100000\n'}, 0.5),
    ('0::/kube/pod/app\n', {'kube/pod/app/cpu.max': 'max 100000\n', 'kube/pod/cpu.max': '150000 100000\n'}, 1.5),
    ('0::/kube/pod\n', {'kube/pod/cpu.max': '400000 100000\n', 'kube/cpu.max': '300000 100000\n'}, 3),
    ('0::/not/there\n', {'cpu.max': '200000 100000\n'}, 2),  # the group's name on the host, inside a container
    ('0::/a:b\n', {'a:b/cpu.max': '100000 100000\n'}, 1),
    ('0::/\n', {'cpu.max': ''}, None),
    (V1, {'cpu,cpuacct/docker/c0ffee/cpu.cfs_quota_us': '-1\n'}, None),
    (
      V1,
      {
        'cpu,cpuacct/docker/c0ffee/cpu.cfs_quota_us': '250000\n',
        'cpu,cpuacct/docker/c0ffee/cpu.cfs_period_us': '100000\n',
      },
      2.5,
    ),
    (V1, {'cpu/cpu.cfs_quota_us': '100000\n', 'cpu/cpu.cfs_period_us': '50000\n'}, 2),
    (V1, {'unified/cpu.max': '100000 100000\n'}, 1),
  ],
)
def test_the_quota_is_the_smallest_of_the_group_and_its_parents(groups_of_process, files, quota, tmp_path):
  assert quota_of(tmp_path, groups_of_process, files) == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
  assert host.cpu_quota(tmp_path / 'none', tmp_path) is None


@pytest.mark.parametrize(('quota', 'count'), [(None, 64), (64, 64), (100, 64), (2, 2), (1.2, 2), (0.1, 1)])
def test_a_process_uses_no_more_cores_than_its_quota(quota, count, monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(100, 164)), raising=False)
  monkeypatch.setattr(host, 'cpu_quota', lambda: quota)
  chosen = host.cores()
  assert len(chosen) == len(set(chosen)) == count
  assert set(chosen) <= set(range(100, 164))
  assert environment()['layout'].endswith(f', {count} core(s)')


def test_containers_use_different_cores(monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(64)), raising=False)
  monkeypatch.setattr(host, 'cpu_quota', lambda: 2)
  taken = set()
  for name in ('a1f0', 'b2e1', 'c3d2'):
    monkeypatch.setattr('socket.gethostname', lambda name=name: name)
    taken.add(tuple(host.cores()))
  assert len(taken) == 3


def test_without_affinity_all_cores_are_counted(monkeypatch):
  monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
  monkeypatch.setattr(os, 'cpu_count', lambda: 3)
  monkeypatch.setattr(host, 'cpu_quota', lambda: None)
  assert host.cores() == [0, 1, 2]
