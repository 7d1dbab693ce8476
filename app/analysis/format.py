"""Text of numbers, times and sizes for the screen, with units."""

import re
from datetime import UTC, datetime
from math import floor, isfinite, log10

MISSING = "–"
_NEGATIVE = re.compile(r"(?<![\w.)=/−-])-(?=\.?\d)")
"""The hyphen before a negative number. No match: "2026-11-21", "1e-5", "3m-2"."""


def write_minus_signs(text: str) -> str:
    """Replace the hyphens before negative numbers by minus signs (−), for text that people read, not for files."""
    return _NEGATIVE.sub("−", text)


def format_number(value: float | None, digits: int = 3) -> str:
    """Write a number with `digits` significant digits and a minus sign: 0.00123, −4.57, 1,234, 2.05M."""
    if value is None or not isfinite(value):
        return MISSING
    size = abs(value)
    if size >= 1e6:
        text = f"{value / 1e6:.{digits}g}M"
    elif size >= 1000:
        text = f"{value:,.0f}"
    elif value == 0:
        text = "0"
    else:
        text = f"{value:.{digits}g}" if size >= 1e-4 else f"{value:.1e}"
    return write_minus_signs(text)


def count_decimals(value: float, digits: int) -> int:
    """Return the number of digits after the point: `digits`, or more for a small number that would be written as 0.

    A small number gets two significant digits. A number below 1e-9 is a rounding error of a sum and is written as 0.
    """
    if not 1e-9 < abs(value) < 0.5 * 10**-digits:
        return digits
    return 1 - floor(log10(abs(value)))


def format_decimals(value: float, digits: int, *, sign: str = "") -> str:
    """Write a number for a table or file, with the digits after the point of `count_decimals`. `sign`: "+" or empty."""
    text = f"{value:{sign}.{count_decimals(value, digits)}f}"
    is_negative_zero = text.startswith("-") and not float(text)
    return f"{0.0:{sign}.{digits}f}" if is_negative_zero else text


def format_count(value: float | None) -> str:
    """Write a whole number with thousands separators."""
    return MISSING if value is None or not isfinite(value) else f"{int(value):,}"


def format_run_count(number: int) -> str:
    """Write a number of runs: 1 run, 12 runs."""
    return "1 run" if number == 1 else f"{format_count(number)} runs"


def format_seed_count(number: int) -> str:
    """Write a number of seeds: 1 seed, 5 seeds."""
    return "1 seed" if number == 1 else f"{format_count(number)} seeds"


def format_percent(value: float | None, digits: int = 0) -> str:
    """Write a fraction as a percentage."""
    if value is None or not isfinite(value):
        return MISSING
    return f"{write_minus_signs(format_decimals(100 * value, digits))} %"


def format_final_rate(rate: float | None, episodes: str | None) -> str:
    """Write a final win rate with the episodes that it counts: 46 % robust.

    Args:
        rate: Fraction; None or NaN if there is none.
        episodes: "robust" or "greedy", see `storage.queries.final_rates`.
    """
    return f"{format_percent(rate)} {episodes}" if rate is not None and isfinite(rate) else MISSING


def format_duration(seconds: float | None) -> str:
    """Write a duration with its two largest units: 45 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    if seconds is None or not isfinite(seconds):
        return MISSING
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def format_size(n_bytes: float) -> str:
    """Write a size in bytes: 340 kB, 12 MB, 1.4 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.2g} {unit}" if n_bytes < 10 * scale else f"{n_bytes / scale:.0f} {unit}"
    return f"{n_bytes:.0f} B"


def format_time(moment: datetime | None) -> str:
    """Write a time in UTC to the second."""
    return MISSING if moment is None else f"{add_utc(moment).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def add_utc(moment: datetime) -> datetime:
    """Add the time zone UTC to a time without one; the database stores UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def escape_markdown(text: str) -> str:
    """Escape text of users so that Markdown shows it unchanged."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!|<>$~:&" else c for c in text).replace("\n", " ")
