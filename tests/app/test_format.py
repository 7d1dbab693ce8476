"""Numbers, durations and texts as people read them."""

import ast
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import app
from app.analysis.format import (
    add_utc,
    escape_markdown,
    format_decimals,
    format_duration,
    format_number,
    format_percent,
    format_size,
    write_minus_signs,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123, "0.00123"),
        (4.5678, "4.57"),
        (1234.5, "1,234"),
        (2.05e6, "2.05M"),
        (1.8e-5, "1.8e-05"),
        (-4.5678, "−4.57"),
        (-1234.5, "−1,234"),
        (-2e-5, "−2.0e-05"),
    ],
)
def test_number_keeps_three_digits(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(97.54, 1, "97.5"), (0.04, 1, "0.040"), (0.000123, 3, "0.00012"), (-1.8e-5, 3, "-0.000018"), (0, 3, "0.000"),
     (-1e-17, 1, "0.0")],
)  # fmt: skip
def test_a_small_number_is_not_written_as_0(value, digits, text):
    assert format_decimals(value, digits) == text


def test_only_the_hyphen_before_a_number_becomes_a_minus_sign():
    text = "-0.5 [-1.2, -.3] 2026-11-21 1e-5 3m-2 (-4) 5-7 a-b ?seed=-1"
    assert write_minus_signs(text) == "−0.5 [−1.2, −.3] 2026-11-21 1e-5 3m-2 (−4) 5-7 a-b ?seed=-1"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_missing_number_is_a_dash(value):
    assert format_number(value) == format_percent(value) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (3000, "50 min"), (7500, "2 h 05 min"), (300_000, "3 d 11 h")],
)
def test_duration_shows_its_two_largest_units(seconds, text):
    assert format_duration(seconds) == text


def test_size_has_a_unit():
    assert (format_size(340_000), format_size(1.4e9), format_size(12)) == ("340 kB", "1.4 GB", "12 B")


def test_moment_without_a_zone_is_utc():
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert add_utc(now.replace(tzinfo=None)) == now
    assert add_utc(now) is now


def test_markdown_in_typed_text_is_escaped():
    assert escape_markdown("<b>*x*</b>\n:red[y]") == "\\<b\\>\\*x\\*\\</b\\> \\:red\\[y\\]"


def _tell_other_forms(path: Path) -> list[str]:
    """Where a percentage or a size is written in another form than `percent` and `size` write it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FormattedValue(format_spec=ast.JoinedStr(values=[ast.Constant(value=str(spec))])):
                if spec.endswith("%"):
                    found.append(spec)
            case ast.keyword(arg="format", value=ast.Constant(value="percent" | "bytes" as form)):
                found.append(form)
            case ast.Constant(value=str(text)):
                found += re.findall(r"\d%(?![;}]| })|\d[kMG]B\b", text)
    return [f"{path.name}: {each}" for each in found]


def test_percentages_and_sizes_have_one_form_everywhere():
    files = Path(app.__file__).parent.rglob("*.py")
    assert [told for path in files for told in _tell_other_forms(path)] == []
