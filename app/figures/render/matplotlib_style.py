"""The settings of Matplotlib for all images: fonts, colors and sizes.

Text stays text, fonts are embedded, and symbols are mathtext.
"""

from functools import cache
from typing import Any

from matplotlib.font_manager import fontManager

from app.figures.image_options import DEFAULT_FONT, ImageOptions
from app.figures.theme import Mode, get_theme_colors
from emtc_core.errors import ConfigError

_SANS_FONTS = ("Arial", "Helvetica", "Liberation Sans", "Nimbus Sans", "DejaVu Sans")
"""Fonts for `sans`. The first one that is installed is used. Matplotlib contains the last one."""
_FONTS = {"serif": ("STIXGeneral", "stix")}
"""Name of a font → family and font of formulas. Matplotlib contains STIX, which looks like Times."""
_FORMULA_STYLES = {"rm": "", "it": ":italic", "bf": ":bold", "cal": ":italic", "sf": "", "tt": ""}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "emtc-lab",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "figure.titlesize": 9,
    "legend.fontsize": 8,
    "text.parse_math": True,
}


def make_style(mode: Mode, *, font: str = DEFAULT_FONT) -> dict[Any, Any]:
    """Return the Matplotlib settings (rcParams) of all images.

    Raises:
        ConfigError: If the font is not installed.
    """
    text, background, grid = get_theme_colors(mode)
    text_keys = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    background_keys = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    colors = dict.fromkeys(text_keys, text) | dict.fromkeys(background_keys, background) | {"grid.color": grid}
    return {**_STYLE, **_select_font(font), **colors}


def _select_font(font: str) -> dict[str, Any]:
    """Return the settings of a font. Characters that it does not contain are drawn with DejaVu Sans.

    Raises:
        ConfigError: If the font is not installed.
    """
    installed = _list_fonts()
    family, formulas = _FONTS.get(font, (font, "custom"))
    if font == DEFAULT_FONT:
        family = next(name for name in _SANS_FONTS if name in installed)
    if family not in installed:
        rule = ImageOptions.get_option("font").rule
        raise ConfigError(f"must be {rule}", key="font", value=font)
    styles = {f"mathtext.{key}": f"{family}{style}" for key, style in _FORMULA_STYLES.items()}
    return {"font.family": [family, "DejaVu Sans"], "mathtext.fontset": formulas, **styles}


@cache
def _list_fonts() -> frozenset[str]:
    return frozenset(fontManager.get_font_names())
