"""Follows the protocol of lab/launch/worker.py without training; the variant's name determines how the worker ends."""

STUB = """
print('welcome to this machine', end='')  # as the sitecustomize of a site may
import functools, json, os, pathlib, signal, sys, threading, time
descriptor = next(argument for argument in sys.argv if argument.startswith('--events=')).partition('=')[2]
print = functools.partial(print, file=open(int(descriptor), 'w'))
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
for line in sys.stdin:
  job = json.loads(line)
  directory = pathlib.Path(job['directory'])
  directory.mkdir(parents=True, exist_ok=True)
  variant = job['labels']['variant']
  if variant == 'silent':
    os.kill(os.getpid(), signal.SIGKILL)
  print(json.dumps({'step': 1, 'steps': 2, 'loss': 1.5, 'tokens_per_second': None}), flush=True)
  (directory / 'log.txt').write_text('one\\ntwo\\n')
  if variant == 'slow':
    time.sleep(0.5)
  if variant == 'lingers':
    threading.Thread(target=time.sleep, args=(60,)).start()
  if variant == 'killed':
    os.kill(os.getpid(), signal.SIGKILL)
  elif variant == 'exits':
    sys.exit(3)
  elif variant == 'fails':
    print(json.dumps({'failed': 'MemoryError: 3 GB'}), flush=True)
  elif variant == 'moves':
    workdir = directory.parent.parent.parent
    workdir.rename(workdir.with_name('moved'))
    print(json.dumps({'failed': 'it was moved'}), flush=True)
  elif variant == 'stopped':
    print(json.dumps({'stopped': True}), flush=True)
  elif variant in ('SIGTERM', 'SIGINT', 'deaf', 'impatient', 'patient'):
    if variant != 'patient':
      os.kill(os.getppid(), signal.SIGTERM if variant == 'SIGTERM' else signal.SIGINT)
    while variant in ('deaf', 'impatient') or not received:
      time.sleep(0.01)
      if received and variant == 'impatient':
        os.kill(os.getppid(), signal.SIGINT)
    print(json.dumps({'stopped': True}), flush=True)
  else:
    if variant.startswith('device'):  # wait until all four run
      (directory / 'started').touch()
      while len(list(directory.parent.parent.glob('device*/seed_0/started'))) < 4:
        time.sleep(0.01)
    (directory / 'config.json').write_text(json.dumps(job['config']))
    (directory / 'environment.json').write_text(json.dumps({'pid': os.getpid(), 'core': os.environ.get('CORE'),
      'gpu': os.environ.get('CUDA_VISIBLE_DEVICES'), 'chip': os.environ.get('TPU_VISIBLE_CHIPS')}))
    (directory / 'result.json').write_text(json.dumps({**job['labels'], 'status': 'completed', 'steps': 300,
      'tokens': 9, 'parameters': 9, 'flops_per_token': 9, 'learning_rate': 1e-3, 'val_loss': 1.0, 'seconds': 1.0,
      'val_bits_per_byte': 1.0, 'test_bits_per_byte': 1.0, 'tokens_per_second': 1.0, 'diverged_at': None}))
    print(json.dumps({'ended': 'completed'}), flush=True)
"""
