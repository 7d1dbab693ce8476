"""LaTeX code of tables with the packages booktabs (horizontal lines) and siunitx (columns of numbers), and of texts.

The code compiles with pdfTeX and siunitx 2 or 3. It contains no characters outside ASCII except accented Latin letters.
Its first line is a comment with the packages that it needs.
"""

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final

_TEXT_CODES: Final = {
    "\\": r"\textbackslash{}",
    "_": r"\_",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\u00a0": "~",
    "\u2011": "-",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "\u0304": "",
}
"""Character → LaTeX code in text mode."""
_GREEK_LETTERS: Final = "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθικλμνξπρστυφχψω"
"""Greek letters that do not look like Latin letters."""
_GREEK_NAMES: Final = (
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega alpha beta gamma delta epsilon zeta eta theta iota kappa "
    "lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
)
_MATH_CODES: Final = {
    "−": "-",
    "±": r"\pm",
    "·": r"\cdot",
    "×": r"\times",
    "≤": r"\leq",
    "≥": r"\geq",
    "≈": r"\approx",
    "→": r"\rightarrow",
    "†": r"^\dagger",
    "′": "'",
    "²": "^2",
    "³": "^3",
    "★": r"\star",
    "∞": r"\infty",
    "≠": r"\neq",
    "µ": r"\mu",
    **{letter: rf"\{name}" for letter, name in zip(_GREEK_LETTERS, _GREEK_NAMES.split(), strict=True)},
}
"""Character → LaTeX code in math mode."""
_LAST_LATIN_LETTER: Final = "\u017f"
"""pdfTeX with UTF-8 input can print the accented letters up to this one."""
_UNSIGNED: Final = r"\d[\d,]*(?:\.\d+)?(?:e[+\-]?\d+)?"
_POWER: Final = r"\d[\d,]*(?:\.\d+)?e[+\-]?\d+"
_TEXT_PART: Final = re.compile(
    rf"\[(?P<low>[+\-−]?{_UNSIGNED})(?:–|, )(?P<high>[+\-−]?{_UNSIGNED})\]"
    rf"|(?<![\w.)\-−])(?P<number>[+\-−]{_UNSIGNED}|{_POWER})(?!\w)"
    r"|(?P<barred>\w)\u0304(?:_(?P<barred_index>[A-Za-z0-9]+))?"
    rf"|(?P<greek>[{_GREEK_LETTERS}])_(?P<greek_index>[A-Za-z0-9]+)"
    r"|(?P<character>.)",
    re.DOTALL,
)
"""An interval, a number with a sign or a power of ten, a letter with a bar or an index, or any other character."""
_PLAIN_NUMBER: Final = re.compile(r"[+-]?(\d+)(?:\.(\d+))?")
_MISSING: Final = ("–", "—", "")
"""Texts of cells without a number."""
_FIT_TO_TEXT: Final = (
    r"\noindent\resizebox{\ifdim\width>\linewidth \linewidth\else \width\fi}{!}{% at most as wide as the text"
)


def escape_text(text: str) -> str:
    r"""Write text as LaTeX code. Intervals, signed numbers and powers of ten are in math mode.

    "-5.03 [-5.2–-1.48]" gives "$-5.03$ [$-5.2$, $-1.48$]", and "Δ̄_mem" gives "$\bar{\Delta}_{\mathrm{mem}}$".
    """
    return "".join(map(_write_text_part, _TEXT_PART.finditer(text)))


def write_tabular(
    headers: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    best: Collection[tuple[int, int]] = (),
    comments: Sequence[str] = (),
) -> str:
    """Write a tabular environment, after a comment with the packages that it needs.

    A column of plain numbers is aligned at the decimal points. LaTeX scales down a table that is wider than the text.

    Args:
        headers: For each column the text above several columns, which may be empty, and the text of the column.
            Adjacent columns with the same upper text share it.
        rows: The texts of the cells.
        best: Cells in bold, as (row, column).
        comments: Lines between the comment with the packages and the table.
    """
    bold_columns = {column for _, column in best}
    formats = ["" if i in bold_columns else _find_number_format([row[i] for row in rows]) for i in range(len(headers))]
    packages = ["booktabs", "graphicx"]
    if any(formats):
        packages.append("siunitx")
    lines = [rf"% \usepackage{{{','.join(packages)}}}", *comments, _FIT_TO_TEXT]
    lines.append(rf"\begin{{tabular}}{{{''.join(format or 'l' for format in formats)}}}")
    lines.append(r"\toprule")
    if any(upper for upper, _ in headers):
        lines += _write_upper_headers([upper for upper, _ in headers])
    names = []
    for (_, name), format in zip(headers, formats, strict=True):
        text = escape_text(name)
        names.append(f"{{{text}}}" if format else text)  # braces: a text in a column of numbers
    lines.append(_write_row(names))
    lines.append(r"\midrule")
    for i, row in enumerate(rows):
        cells = [_write_cell(text, formats[column], is_best=(i, column) in best) for column, text in enumerate(row)]
        lines.append(_write_row(cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}%"])  # without % a space follows, which does not fit


def _write_upper_headers(uppers: Sequence[str]) -> list[str]:
    """Write the row of the texts above several columns, and the rules below these texts."""
    cells: list[str] = []
    rules: list[str] = []
    first = 1
    for upper, group in groupby(uppers):
        n_columns = len(list(group))
        if upper:
            text = escape_text(upper)
            cells.append(rf"\multicolumn{{{n_columns}}}{{c}}{{{text}}}" if n_columns > 1 else f"{{{text}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + n_columns - 1}}}")
        else:
            cells += [""] * n_columns
        first += n_columns
    return [_write_row(cells), " ".join(rules)]


def _find_number_format(texts: Sequence[str]) -> str:
    """Return the siunitx column "S[…]" for texts that are plain numbers or missing; "" if another text is there."""
    numbers = [text.replace("−", "-") for text in texts if text not in _MISSING]
    matches = [match for match in map(_PLAIN_NUMBER.fullmatch, numbers) if match]
    if not numbers or len(matches) < len(numbers):
        return ""
    n_digits = max(len(match[1]) for match in matches)
    n_decimals = max(len(match[2] or "") for match in matches)
    has_plus = any(number.startswith("+") for number in numbers)
    has_minus = any(number.startswith("-") for number in numbers)
    sign = ""
    if has_plus:
        sign = "+"
    elif has_minus:
        sign = "-"
    decimals = f".{n_decimals}" if n_decimals else ""
    options = [f"table-format={sign}{n_digits}{decimals}"]
    if has_plus:
        options.append("retain-explicit-plus=true")
    longest = max(n_digits, n_decimals)
    if longest > 4:
        options.append(f"group-minimum-digits={longest + 1}")  # no spaces between thousands
    return f"S[{','.join(options)}]"


def _write_cell(text: str, number_format: str, *, is_best: bool) -> str:
    if number_format:
        return f"{{{escape_text(text)}}}" if text in _MISSING else text.replace("−", "-")
    code = escape_text(text)
    if is_best:
        return rf"\textbf{{\boldmath {code}}}" if "$" in code else rf"\textbf{{{code}}}"
    return code


def _write_row(cells: Sequence[str]) -> str:
    """Write a row. LaTeX would read a bracket or star at its start as an argument of the row end above: use braces."""
    text = " & ".join(cells)
    if text.startswith(("[", "*")):
        text = f"{{{text[0]}}}{text[1:]}"
    return rf"{text} \\"


def _write_text_part(match: re.Match[str]) -> str:
    if match["low"]:
        return f"[{_write_number(match['low'])}, {_write_number(match['high'])}]"
    if match["number"]:
        return _write_number(match["number"])
    if letter := match["barred"]:
        return f"$\\bar{{{_MATH_CODES.get(letter, letter)}}}{_write_index(match['barred_index'])}$"
    if letter := match["greek"]:
        return f"${_MATH_CODES[letter]}{_write_index(match['greek_index'])}$"
    return _write_character(match["character"])


def _write_number(text: str) -> str:
    r"""Write a number in math mode: "−2" gives "$-2$", "5e-05" gives "$5 \times 10^{-5}$"."""
    mantissa, _, exponent = text.replace("−", "-").replace(",", "{,}").partition("e")
    power = rf" \times 10^{{{int(exponent)}}}" if exponent else ""
    return f"${mantissa}{power}$"


def _write_index(text: str | None) -> str:
    if not text:
        return ""
    return f"_{{{text}}}" if len(text) == 1 else f"_{{\\mathrm{{{text}}}}}"


def _write_character(character: str) -> str:
    if character in _TEXT_CODES:
        return _TEXT_CODES[character]
    if character in _MATH_CODES:
        return f"${_MATH_CODES[character]}$"
    if character.isascii() or (character.isalpha() and character <= _LAST_LATIN_LETTER):
        return character if character.isprintable() else " "
    return rf"\texttt{{U+{ord(character):04X}}}"
