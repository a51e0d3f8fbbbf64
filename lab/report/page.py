"""Pages that are one file: a template of this folder filled, its pictures inside it."""

import base64
from pathlib import Path
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
  """Fills a template of this folder; a name it uses and is not given is an error."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  return environment.get_template(template).render(values)


def embed(svg: Path) -> str:
  """A picture as the address of an image."""
  return 'data:image/svg+xml;base64,' + base64.b64encode(svg.read_bytes()).decode()
