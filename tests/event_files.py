"""Reads TensorBoard's event files, without TensorFlow."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def read_events(folder: Path) -> list[tuple[int, str, float]]:
  """All (step, name, value) in the event files: records of a length, its checksum, the event and its checksum."""
  found = []
  for path in sorted(folder.iterdir()):
    assert path.name.startswith('events.out.tfevents.')
    content, place = path.read_bytes(), 0
    while place < len(content):
      (length,) = struct.unpack_from('<Q', content, place)
      event = Event.FromString(content[place + 12 : place + 12 + length])
      found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
      place += 12 + length + 4
    assert place == len(content)
  return found
