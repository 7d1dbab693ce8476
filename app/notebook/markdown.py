"""Make Markdown from any author safe: no HTML, no images, and no links except to the web and to views of this app.

`sanitize` returns Markdown, for the page and for exported Markdown. `to_html` returns HTML, for an exported page.
Markup that is not allowed is shown as text, so that no text is lost.
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

_WORD_JOINER = "\u2060"
"""An invisible character of zero width. It is inserted between two characters that would start markup."""
_FORMULA_FONT_SIZE = 13
"""Font size of formulas [points]. The text next to them has 12 points (16 px)."""
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
_PRICE = re.compile(r"(?<!\\)\$(?=\d[^$\n]*\s\$)")
"""The first dollar of "$5 and $6", which many Markdown readers parse as a formula."""
_LINK_TEXT_END = re.compile(r"\](?=[(\[:])")
_SAFE_LINK = re.compile(r"https?://|mailto:|[#?]|/(?!/)", re.IGNORECASE)
"""Links to the web or to a view of this app."""


def sanitize(text: str) -> str:
    """Return Markdown without HTML and images. If a link is not safe, all links become text."""
    safe = text.replace("\r\n", "\n")
    safe = _TAG_START.sub(f"<{_WORD_JOINER}", safe)
    safe = safe.replace("![", f"!{_WORD_JOINER}[")
    safe = _PRICE.sub(r"\\$", safe)
    if all(_SAFE_LINK.match(link) for link in _list_links(safe)):
        return safe
    return _LINK_TEXT_END.sub(f"]{_WORD_JOINER}", safe)


def to_html(text: str) -> str:
    """Render Markdown with tables and formulas as HTML that loads no files and runs no scripts."""
    return str(_PARSER.render(text))


def _list_links(text: str) -> Iterator[str]:
    """List the URLs of all links, also the unsafe ones that `_PARSER` does not accept as links."""
    for block in _LENIENT_PARSER.parse(text):
        for token in block.children or ():
            if token.type == "link_open":
                yield str(token.attrGet("href") or "")


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    parser.disable("image")
    parser.validateLink = lambda url: bool(_SAFE_LINK.match(url.strip()))
    parser.inline.ruler.before("escape", "maths", _parse_formula)
    parser.add_render_rule("maths", _render_formula)
    parser.add_render_rule("link_open", _render_link)
    return parser


def _make_lenient_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark")
    parser.validateLink = lambda url: True
    return parser


def _parse_formula(state: StateInline, silent: bool) -> bool:
    """Parse `$…$` and `$$…$$`. A dollar next to a space or before a digit is a price."""
    source = state.src
    if source[state.pos] != "$":
        return False
    mark = "$$" if source.startswith("$$", state.pos) else "$"
    start = state.pos + len(mark)
    end = source.find(mark, start)
    content = source[start:end] if end > 0 else ""
    formula = content.strip()
    if not formula:
        return False
    next_character = source[end + len(mark) : end + len(mark) + 1]
    is_price = mark == "$" and (content != formula or next_character.isdigit())
    if is_price:
        return False
    if not silent:  # silent: the parser only checks whether there is a formula
        token = state.push("maths", "", 0)
        token.content = formula
        token.markup = mark
    state.pos = end + len(mark)
    return True


def _render_formula(renderer: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: object) -> str:
    """Render a formula as an embedded image, or as source code if Matplotlib does not support its TeX commands."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    source = tokens[at].content
    escaped = escapeHtml(f"${source}$")
    formula_in_one_line = f"${' '.join(source.split())}$"
    font = FontProperties(size=_FORMULA_FONT_SIZE)
    file = io.BytesIO()
    try:
        # The depth is the part of the image below the base line of the text [points].
        depth = float(math_to_image(formula_in_one_line, file, prop=font, format="svg", dpi=72))
    except (ValueError, RuntimeError):
        return f"<code>{escaped}</code>"
    image = f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
    display = "display" if tokens[at].markup == "$$" else "inline"
    return f'<img class="maths {display}" src="{image}" alt="{escaped}" style="vertical-align:-{depth:.1f}pt">'


def _render_link(renderer: RendererHTML, tokens: list[Token], at: int, options: OptionsDict, env: object) -> str:
    tokens[at].attrSet("rel", "noopener noreferrer nofollow")
    return renderer.renderToken(tokens, at, options, env)  # type: ignore[arg-type]  # env is any mapping


_PARSER = _make_parser()
_LENIENT_PARSER = _make_lenient_parser()
