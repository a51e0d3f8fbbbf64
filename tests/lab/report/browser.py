"""Controls a headless Chromium through a pipe, with the Chrome DevTools Protocol: JSON between zero bytes."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')


class Browser:
  """One tab, which records the page's errors: of the console, the log and scripts."""

  def __init__(self, read_fd: int, write_fd: int):
    self._answers, self._requests = os.fdopen(read_fd, 'rb'), os.fdopen(write_fd, 'wb')
    self._count, self._unread, self._session = 0, b'', None
    self.errors: list[str] = []
    target = self._ask('Target.createTarget', url='about:blank')['targetId']
    self._session = self._ask('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Log'):
      self._ask(f'{domain}.enable')

  def open(self, page: Path, width: int) -> None:
    """Opens a page at a width in pixels and waits until it has loaded."""
    self._ask('Emulation.setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1, mobile=False)
    self._ask('Page.navigate', url=page.as_uri())
    while self._read().get('method') != 'Page.loadEventFired':
      pass

  def evaluate(self, script: str):
    """Evaluates an expression in the page."""
    return self._ask('Runtime.evaluate', expression=script, returnByValue=True)['result']['value']

  def _ask(self, method: str, **parameters) -> dict:
    self._count += 1
    request = {'id': self._count, 'method': method, 'params': parameters}
    request |= {'sessionId': self._session} if self._session else {}
    self._requests.write(json.dumps(request).encode() + b'\0')
    self._requests.flush()
    while (answer := self._read()).get('id') != self._count:
      pass
    assert 'error' not in answer, answer
    return answer['result']

  def _read(self) -> dict:
    while b'\0' not in self._unread:
      piece = self._answers.read1()
      assert piece, 'the browser has exited'
      self._unread += piece
    message, _, self._unread = self._unread.partition(b'\0')
    event = json.loads(message)
    parameters = event.get('params', {})
    if event.get('method') == 'Runtime.consoleAPICalled' and parameters['type'] in ('error', 'warning', 'assert'):
      self.errors.append(str(parameters['args']))
    if event.get('method') == 'Runtime.exceptionThrown':
      self.errors.append(str(parameters['exceptionDetails']))
    if event.get('method') == 'Log.entryAdded' and parameters['entry']['level'] in ('error', 'warning'):
      self.errors.append(parameters['entry']['text'])
    return event


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
  """Starts Chromium with a separate profile, and stops it at the end."""
  assert CHROMIUM, 'no chromium on this machine: apt-get install chromium'
  to_browser, from_browser = os.pipe(), os.pipe()
  command = [
    CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
    f'--user-data-dir={profile}', '--remote-debugging-pipe',
  ]  # fmt: skip
  ends = (to_browser[0], from_browser[1])  # Chromium reads from 3 and writes to 4
  shell = ['bash', '-c', f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', 'bash', *command]
  process = subprocess.Popen(shell, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  for end in ends:
    os.close(end)
  tab = Browser(from_browser[0], to_browser[1])
  try:
    yield tab
  finally:
    process.terminate()
    process.wait()
    tab._answers.close()
    tab._requests.close()
