"""HTML pages in one file: a template of this folder, with its images embedded."""

import base64
from pathlib import Path
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
  """Renders a template of this folder; an undefined name in it is an error."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  return environment.get_template(template).render(values)


def embed(svg: Path) -> str:
  """The data URI of an SVG file, for the src of an image."""
  return 'data:image/svg+xml;base64,' + base64.b64encode(svg.read_bytes()).decode()
