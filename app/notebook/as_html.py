"""Entries as one page that needs no network: images inside, every text escaped, no script at all."""

import base64
from collections.abc import Sequence
from html import escape

from app.figures.render.export import export_figure
from app.notebook.markdown import to_html
from app.notebook.view import Gathered, view_link

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 16px/1.55 sans-serif; color: #1f2430; background: #fff; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
article { border-top: 1px solid #cfd4da; padding-top: 1rem; margin-top: 2rem }
figure { margin: 1rem 0 } figure img { max-width: 100% }
figcaption, .small { color: #5a626c; font-size: .85rem } .small { overflow-wrap: anywhere }
pre, code { background: #f3f4f6; border-radius: 3px } code { padding: 0 .2em } pre { padding: .6rem; overflow-x: auto }
table { border-collapse: collapse } td, th { border: 1px solid #cfd4da; padding: .2rem .5rem }
img.maths.display { display: block; margin: .8rem auto } blockquote { border-left: 3px solid #cfd4da; margin-left: 0; padding-left: 1rem }
@media print { article { break-inside: avoid-page } }
"""  # noqa: E501  # one rule per line


def to_page(entries: Sequence[Gathered], *, address: str | None) -> bytes:
    """Write the page; it prints well and is safe to open whoever wrote the entries."""
    body = "\n".join(_article(entry, address) for entry in entries)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<title>Research notebook</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Research notebook</h1>
{body}
</body>
</html>
""".encode()


def _article(entry: Gathered, address: str | None) -> str:
    parts = [f"<h2>{escape(entry.title)}</h2>", f'<p class="small">{escape(entry.dates)}</p>']
    parts.append(to_html(entry.row.body))
    if entry.figure is not None:
        parts.append(_figure(entry))
    parts += [f'<p class="small">Run {escape(line)}</p>' for line in entry.origins]
    parts.append(_view(entry, address))
    return f'<article id="entry-{entry.row.id}">\n' + "\n".join(part for part in parts if part) + "\n</article>"


def _figure(entry: Gathered) -> str:
    assert entry.figure is not None
    image = base64.b64encode(export_figure(entry.figure, "svg")).decode()
    alt = escape(entry.figure.description)
    caption = escape(entry.caption)
    return (
        f'<figure><img src="data:image/svg+xml;base64,{image}" alt="{alt}"><figcaption>{caption}</figcaption></figure>'
    )


def _view(entry: Gathered, address: str | None) -> str:
    if entry.view is None:
        return ""
    link, shown = view_link(entry.view, address), escape(entry.view.address)
    text = f'<a href="{escape(link)}" rel="noopener noreferrer">{shown}</a>' if link else f"<code>{shown}</code>"
    return f'<p class="small">View: {text}</p>'
