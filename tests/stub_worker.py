"""Follows the protocol of lab/launch/worker.py without training; the variant's name determines how the worker ends."""

STUB = """
print('welcome to this machine', end='')  # as sitecustomize may
import functools, json, os, pathlib, signal, sys, threading, time
descriptor = next(argument for argument in sys.argv if argument.startswith('--events=')).partition('=')[2]
print = functools.partial(print, file=open(int(descriptor), 'w'))
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
for line in sys.stdin:
  job = json.loads(line)
  directory = pathlib.Path(job['directory'])
  directory.mkdir(parents=True, exist_ok=True)
  what = job['labels']['variant']
  if what == 'silent':
    os.kill(os.getpid(), signal.SIGKILL)
  print(json.dumps({'step': 1, 'steps': 2, 'loss': 1.5, 'tokens_per_second': None}), flush=True)
  (directory / 'log.txt').write_text('one\\ntwo\\n')
  if what == 'slow':
    time.sleep(0.5)
  if what == 'lingers':
    threading.Thread(target=time.sleep, args=(60,)).start()
  if what == 'killed':
    os.kill(os.getpid(), signal.SIGKILL)
  elif what == 'exits':
    sys.exit(3)
  elif what == 'fails':
    print(json.dumps({'failed': 'MemoryError: 3 GB'}), flush=True)
  elif what == 'moves':
    workdir = directory.parent.parent.parent
    workdir.rename(workdir.with_name('moved'))
    print(json.dumps({'failed': 'it was moved'}), flush=True)
  elif what == 'told':
    print(json.dumps({'stopped': True}), flush=True)
  elif what in ('SIGTERM', 'SIGINT', 'deaf', 'impatient', 'patient'):
    if what != 'patient':
      os.kill(os.getppid(), signal.SIGTERM if what == 'SIGTERM' else signal.SIGINT)
    while what in ('deaf', 'impatient') or not told:
      time.sleep(0.01)
      if told and what == 'impatient':
        os.kill(os.getppid(), signal.SIGINT)
    print(json.dumps({'stopped': True}), flush=True)
  else:
    if what.startswith('device'):  # waits until all four run at the same time
      (directory / 'here').touch()
      while len(list(directory.parent.parent.glob('device*/seed_0/here'))) < 4:
        time.sleep(0.01)
    (directory / 'config.json').write_text(json.dumps(job['config']))
    (directory / 'seen.json').write_text(json.dumps({'pid': os.getpid(), 'core': os.environ.get('CORE'),
      'gpu': os.environ.get('CUDA_VISIBLE_DEVICES'), 'chip': os.environ.get('TPU_VISIBLE_CHIPS')}))
    (directory / 'result.json').write_text(json.dumps({**job['labels'], 'status': 'completed', 'steps': 300,
      'tokens': 9, 'parameters': 9, 'flops_per_token': 9, 'learning_rate': 1e-3, 'val_loss': 1.0, 'seconds': 1.0,
      'val_bits_per_byte': 1.0, 'test_bits_per_byte': 1.0, 'tokens_per_second': 1.0, 'diverged_at': None}))
    print(json.dumps({'ended': 'completed'}), flush=True)
"""
