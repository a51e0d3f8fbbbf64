"""Reads TensorBoard event files without TensorFlow."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def read_events(folder: Path) -> list[tuple[int, str, float]]:
  """Returns (step, name, value) of all events. A record is its length, a checksum, the event, and a checksum."""
  values = []
  for path in sorted(folder.iterdir()):
    assert path.name.startswith('events.out.tfevents.')
    content, offset = path.read_bytes(), 0
    while offset < len(content):
      (length,) = struct.unpack_from('<Q', content, offset)
      event = Event.FromString(content[offset + 12 : offset + 12 + length])
      values += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
      offset += 12 + length + 4
    assert offset == len(content)
  return values
