"""Arithmetic with colors: luminance, contrast and hue. A color is a text such as "#D55E00", in sRGB."""

import colorsys

_MIN_LUMINANCE = 0.126
_MAX_LUMINANCE = 0.295
"""Between these luminances, a variant has a contrast of at least 3:1 on the dark and on the light background."""
_TEXT_CONTRAST = 4.6
"""Contrast of colored text to its background. The minimum of WCAG is 4.5; rounding a color can change it a little."""


def shift_hue(color: str, degrees: float) -> str:
    """Change the hue of a color.

    The saturation is limited to 0.85, and the luminance is limited so that a line is visible on both backgrounds.
    """
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    channels = colorsys.hls_to_rgb((hue + degrees / 360) % 1, lightness, min(saturation, 0.85))
    hex_color = "#" + "".join(f"{round(255 * channel):02X}" for channel in channels)
    readable_luminance = min(max(luminance(hex_color), _MIN_LUMINANCE), _MAX_LUMINANCE)
    return set_luminance(hex_color, readable_luminance)


def set_luminance(color: str, target: float) -> str:
    """Return a color with the same hue and the relative luminance `target` (0 to 1)."""
    channels = _get_linear_channels(color)
    current = luminance(color)
    if target > current:  # mix with white
        channels = [channel + (1 - channel) * (target - current) / (1 - current) for channel in channels]
    else:  # mix with black
        channels = [channel * target / current for channel in channels]
    encoded = [12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in channels]  # linear to sRGB
    return "#" + "".join(f"{round(255 * channel):02X}" for channel in encoded)


def make_text_color(color: str, background: str) -> str:
    """Return a darker or lighter shade of a color, in which text has a contrast of 4.5:1 to the background."""
    paper = luminance(background) + 0.05
    is_light = luminance(background) > 0.18
    if is_light:
        target = min(luminance(color), paper / _TEXT_CONTRAST - 0.05)
    else:
        target = max(luminance(color), paper * _TEXT_CONTRAST - 0.05)
    return set_luminance(color, target)


def luminance(color: str) -> float:
    """Compute the relative luminance of a color, 0 to 1 (WCAG 2)."""
    red, green, blue = _get_linear_channels(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _get_linear_channels(color: str) -> list[float]:
    """Convert "#RRGGBB" from sRGB to linear red, green and blue, 0 to 1."""
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
