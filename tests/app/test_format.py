"""Numbers, durations and texts as people read them."""

import pytest

from app.analysis.format import (
    escape_markdown,
    format_decimals,
    format_duration,
    format_number,
    format_percent,
    format_size,
    write_minus_signs,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        *((format_number, value, "–") for value in (None, float("nan"), float("inf"))),
        (format_percent, float("nan"), "–"),
        (format_number, 0, "0"),
        (format_number, 0.00123, "0.00123"),
        (format_number, 4.5678, "4.57"),
        (format_number, 1234.5, "1,234"),
        (format_number, 2.05e6, "2.05M"),
        (format_number, 1.8e-5, "1.8e-05"),
        (format_number, -1234.5, "−1,234"),
        (format_number, -2e-5, "−2.0e-05"),
        (format_duration, 0, "0 s"),
        (format_duration, 59.4, "59 s"),
        (format_duration, 200, "3 min 20 s"),
        (format_duration, 3000, "50 min"),
        (format_duration, 7500, "2 h 05 min"),
        (format_duration, 300_000, "3 d 11 h"),
        (format_size, 12, "12 B"),
        (format_size, 340_000, "340 kB"),
        (format_size, 1.4e9, "1.4 GB"),
    ],
)
def test_a_quantity_is_written_with_few_digits_and_its_unit(write, value, text):
    assert write(value) == text


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


def test_markdown_in_typed_text_is_escaped():
    assert escape_markdown("<b>*x*</b>\n:red[y]") == "\\<b\\>\\*x\\*\\</b\\> \\:red\\[y\\]"
