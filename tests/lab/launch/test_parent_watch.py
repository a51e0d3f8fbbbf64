"""A worker stops when its command is killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]

# Starts a worker, as a command does, and waits to be killed.
COMMAND = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())], pass_fds=[1])
time.sleep(60)
"""
WORKER = """
import signal, sys, time
from lab.launch import parent_watch
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
watch = parent_watch.ParentWatch(int(sys.argv[1]))
should_stop = watch.wrap(lambda: bool(received))
{before}
print('ready', flush=True)
{does}
print('saved', flush=True)
"""
TRAINS = 'while not should_stop(): time.sleep(0.01)'
SLOW = 'time.sleep(1.5)\nassert should_stop()'  # a step takes longer than the watch waits by default


@pytest.mark.parametrize(
  ('does', 'within', 'saved'),
  [
    (TRAINS, 10, True),
    (SLOW, 10, True),
    ('time.sleep(60)', 10, False),  # compiles
    (TRAINS.replace('not should_stop()', 'True'), 10, False),  # evaluates: nothing calls should_stop
    (f'parent_watch.SAVE_WITHIN = 0.5\n{TRAINS}\ntime.sleep(60)', 10, False),  # its save hangs
  ],
)
def test_a_worker_saves_and_exits_when_its_command_is_killed(does, within, saved):
  program = [
    sys.executable,
    '-c',
    COMMAND,
    WORKER.format(before='should_stop(); time.sleep(1.5); should_stop()' if does == SLOW else '', does=does),
  ]
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
  with subprocess.Popen(program, cwd=PROJECT, text=True, **pipes) as command:
    assert command.stdout.readline() == 'ready\n'
    command.kill()
    started = time.monotonic()
    output = command.stdout.read()  # ends when the worker exits
    assert time.monotonic() - started < within
    assert output == ('saved\n' if saved else '')
    assert 'the command that started this worker has exited' in command.stderr.read()


def test_a_worker_exits_at_once_if_its_command_has_exited_when_it_starts():
  exited = subprocess.Popen([sys.executable, '-c', ''])
  exited.wait()
  program = WORKER.format(before='', does='time.sleep(60)')
  ended = subprocess.run([sys.executable, '-c', program, str(exited.pid)], cwd=PROJECT, timeout=30, capture_output=True)
  assert ended.returncode == os.EX_TEMPFAIL
