"""A stranger's Markdown made harmless: no HTML, no image from elsewhere, no link that runs a script.

`tame` keeps it Markdown, for the page and for exported Markdown; `to_html` renders it for an exported page. Nothing
that a reader sees is taken away: what would be active is shown as text.
"""

import base64
import io
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

_JOINER = "\u2060"  # a width of nothing; whatever stands before and after it no longer meets
_MATHS_POINTS = 13  # beside text of 16 pixels, which is 12 points
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_PRICE = re.compile(r"(?<!\\)\$(?=\d[^$\n]*\s\$)")  # "$5 and $6", which many readers take for a formula
_LINK_PARTS = re.compile(r"\](?=[(\[:])")
_SAFE_LINK = re.compile(r"https?://|mailto:|[#?]|/(?!/)", re.IGNORECASE)  # the web, or a view of this app


def tame(text: str) -> str:
    """Return Markdown that no reader turns into HTML, an image, or a link to anything but the web."""
    calm = _TAG.sub(f"<{_JOINER}", text.replace("\r\n", "\n")).replace("![", f"!{_JOINER}[")
    calm = _PRICE.sub(r"\\$", calm)
    if all(_SAFE_LINK.match(link) for link in _links(calm)):
        return calm
    return _LINK_PARTS.sub(f"]{_JOINER}", calm)


def to_html(text: str) -> str:
    """Render Markdown with tables and maths as HTML that loads nothing and runs nothing."""
    return str(_PARSER.render(text))


def _links(text: str) -> Iterator[str]:
    """List where the links of a text point to, with every scheme that a lenient reader would accept."""
    for block in _LENIENT.parse(text):
        for token in block.children or ():
            if token.type == "link_open":
                yield str(token.attrGet("href") or "")


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    parser.disable("image")
    parser.validateLink = lambda url: bool(_SAFE_LINK.match(url.strip()))
    parser.inline.ruler.before("escape", "maths", _read_maths)
    parser.add_render_rule("maths", _draw_maths)
    parser.add_render_rule("link_open", _open_link)
    return parser


def _make_lenient_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.validateLink = lambda url: True
    return parser


def _read_maths(state: StateInline, silent: bool) -> bool:
    """Read `$…$` and `$$…$$`; a dollar beside a space or before a digit is a price."""
    source, start = state.src, state.pos
    if source[start] != "$":
        return False
    mark = "$$" if source.startswith("$$", start) else "$"
    end = source.find(mark, start + len(mark))
    content = source[start + len(mark) : end] if end > 0 else ""
    after = source[end + len(mark) : end + len(mark) + 1]
    if not content.strip() or (mark == "$" and (content != content.strip() or after.isdigit())):
        return False
    if not silent:
        token = state.push("maths", "", 0)
        token.content, token.markup = content.strip(), mark
    state.pos = end + len(mark)
    return True


def _draw_maths(renderer: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: object) -> str:
    """Draw a formula as an image inside the page; what cannot be drawn is shown as it was written."""
    source = tokens[at].content
    shown = escapeHtml(f"${source}$")
    drawn = _formula(source)
    if drawn is None:
        return f"<code>{shown}</code>"
    image, depth = drawn
    kind = "display" if tokens[at].markup == "$$" else "inline"
    return f'<img class="maths {kind}" src="{image}" alt="{shown}" style="vertical-align:-{depth:.1f}pt">'


def _formula(source: str) -> tuple[str, float] | None:
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    file, font = io.BytesIO(), FontProperties(size=_MATHS_POINTS)
    try:
        depth = math_to_image(f"${' '.join(source.split())}$", file, prop=font, format="svg", dpi=72)
    except (ValueError, RuntimeError):  # beyond Matplotlib's part of TeX
        return None
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}", float(depth)


def _open_link(renderer: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: object) -> str:
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, at, options, env)  # type: ignore[arg-type]  # env is any mapping


_PARSER = _make_parser()
_LENIENT = _make_lenient_parser()
