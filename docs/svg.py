"""The parts of the drawings in docs/: SVG text, without a dependency."""

BLACK, GREY, ACCENT = '#1A1A1A', '#6B6B6B', '#D55E00'
STYLE = (
  'text{font:13px Helvetica,Arial,sans-serif;fill:#1A1A1A}.small{font-size:11px;fill:#6B6B6B}.accent{fill:#D55E00}'
  '.middle{text-anchor:middle}.end{text-anchor:end}.bold{font-weight:bold}'
)
MARKERS = ''.join(
  f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
  f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
  for name, colour in (('solid', BLACK), ('dashed', ACCENT))
)


def text(x: float, y: float, content: str, kind: str = '') -> str:
  """A line of text; `kind` names classes of STYLE."""
  return f'<text x="{x:g}" y="{y:g}" class="{kind}">{content}</text>'


def line(points: str, colour: str = BLACK, arrow: bool = False, dashed: bool = False) -> str:
  """A polyline through 'x,y x,y ...'."""
  end = f' marker-end="url(#{"dashed" if dashed else "solid"})"' if arrow else ''
  dashes = ' stroke-dasharray="4 3"' if dashed else ''
  return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"{dashes}{end}/>'


def box(x: float, y: float, width: float, height: float, name: str, fill: str, kind: str = '') -> str:
  """A box with its left edge at x, centred on y."""
  return (
    f'<rect x="{x:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}"'
    f' stroke="{BLACK}"/>' + text(x + width / 2, y + 4.5, name, f'{kind} middle'.strip())
  )


def document(width: int, height: int, parts: list[str]) -> str:
  """An SVG file with these parts on a white ground."""
  opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
  ground = f'<style>{STYLE}</style><defs>{MARKERS}</defs><rect width="{width}" height="{height}" fill="white"/>'
  return '\n'.join([opening, ground, *parts, '</svg>']) + '\n'
