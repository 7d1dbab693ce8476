"""LaTeX code of tables: text with special characters and Greek letters, numbers in math mode, and the tabular.

A column of plain numbers is an S column of siunitx, which aligns the decimal points. The code compiles with pdfTeX and
siunitx 2 or 3: it contains no characters outside ASCII except accented Latin letters. Its first line is a comment with
the packages that it needs.
"""

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final

_SPECIAL: Final = {
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
    "\n": " ",
    "\r": " ",
    "\t": " ",
    "\u00a0": "~",
    "\u2011": "-",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
}
"""Character → LaTeX code in text mode."""
_GREEK_LETTERS: Final = "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθικλμνξπρστυφχψω"
_GREEK_NAMES: Final = (
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega alpha beta gamma delta epsilon zeta eta theta iota kappa "
    "lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega"
)
"""Greek letters that do not look like Latin letters, and their names in LaTeX."""
_SYMBOLS: Final = {
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
_MACRON: Final = "\u0304"
_LAST_LATIN_LETTER: Final = "\u017f"
"""pdfTeX with UTF-8 input can print the accented letters up to this one."""
_NUMBER: Final = r"[+\-−]?\d[\d,]*(?:\.\d+)?(?:e[+\-]?\d+)?"
_PLAIN_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")
_MISSING: Final = ("–", "—", "")
"""Texts of cells without a number."""
_TEXT_WIDTH: Final = 72
"""Characters of a table that certainly fit into the width of the text of NeurIPS and ICML, 5.5 and 6.75 inches."""
_TOKEN: Final = re.compile(
    rf"(?P<interval>\[(?P<low>{_NUMBER})(?:–|, )(?P<high>{_NUMBER})\])"
    rf"|(?<![\w.])(?P<first>{_NUMBER})–(?P<last>{_NUMBER})(?!\w)"
    rf"|(?<![\w.)\-−])(?P<signed>[+\-−]\d[\d,]*(?:\.\d+)?(?:e[+\-]?\d+)?)(?!\w)"
    rf"|(?<![\w.])(?P<power>\d[\d,]*(?:\.\d+)?e[+\-]?\d+)(?!\w)"
    rf"|(?P<letter>\w){_MACRON}(?:_(?P<index>[A-Za-z0-9]+))?"
    rf"|(?P<greek>[{_GREEK_LETTERS}])_(?P<subscript>[A-Za-z0-9]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


def escape_text(text: str) -> str:
    r"""Write text as LaTeX code. Intervals, signed numbers and powers of ten are in math mode.

    "-5.03 [-5.2–-1.48]" gives "$-5.03$ [$-5.2$, $-1.48$]", and "Δ̄_mem" gives "$\bar{\Delta}_{\mathrm{mem}}$".
    """
    return "".join(map(_write_token, _TOKEN.finditer(text)))


def write_tabular(
    headers: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    best: Collection[tuple[int, int]] = (),
    comments: Sequence[str] = (),
) -> str:
    """Write a tabular environment with the rules of booktabs, after a comment with the packages that it needs.

    A table that is probably wider than the text of a page is scaled down to the width of the text.

    Args:
        headers: For each column the text above several columns, which may be empty, and the text of the column.
            Adjacent columns with the same upper text share it.
        rows: The texts of the cells.
        best: Cells in bold, as (row, column).
        comments: Lines between the comment with the packages and the table.
    """
    bold_columns = {column for _, column in best}
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    formats = ["" if i in bold_columns else _find_number_format(texts) for i, texts in enumerate(columns)]
    lines = [rf"\begin{{tabular}}{{{''.join(format or 'l' for format in formats)}}}", r"\toprule"]
    if any(upper for upper, _ in headers):
        cells, rules, first = [], [], 1
        for upper, group in groupby(upper for upper, _ in headers):
            width = len(list(group))
            if upper:
                text = escape_text(upper)
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{text}}}" if width > 1 else f"{{{text}}}")
                rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
            else:
                cells += [""] * width
            first += width
        lines += [_write_row(cells), " ".join(rules)]
    names = [escape_text(name) for _, name in headers]
    lines += [
        _write_row([f"{{{name}}}" if format else name for name, format in zip(names, formats, strict=True)]),
        r"\midrule",
    ]
    for i, row in enumerate(rows):
        cells = [_write_cell(text, format, is_best=(i, k) in best)
                 for k, (text, format) in enumerate(zip(row, formats, strict=True))]  # fmt: skip
        lines.append(_write_row(cells))
    lines += [r"\bottomrule", r"\end{tabular}"]
    packages = ["booktabs"]
    if _estimate_width(headers, columns) > _TEXT_WIDTH:
        packages.append("graphicx")
        lines = [
            r"\resizebox{\ifdim\width>\textwidth \textwidth\else \width\fi}{!}{% as wide as the text",
            *lines[:-1],
            rf"{lines[-1]}}}",
        ]
    if any(formats):
        packages.append("siunitx")
    return "\n".join([rf"% \usepackage{{{','.join(packages)}}}", *comments, *lines])


def _find_number_format(texts: Sequence[str]) -> str:
    """Return the S column for texts that are plain numbers or missing, or "" if a text is something else."""
    numbers = [text.replace("−", "-") for text in texts if text not in _MISSING]
    if not numbers or not all(map(_PLAIN_NUMBER.fullmatch, numbers)):
        return ""
    parts = [number.lstrip("+-").partition(".") for number in numbers]
    integer, decimals = max(len(part[0]) for part in parts), max(len(part[2]) for part in parts)
    has_plus = any(number.startswith("+") for number in numbers)
    sign = "+" if has_plus else "-" if any(number.startswith("-") for number in numbers) else ""
    options = [f"table-format={sign}{integer}" + (f".{decimals}" if decimals else "")]
    if has_plus:
        options.append("retain-explicit-plus=true")
    if max(integer, decimals) > 4:
        options.append(f"group-minimum-digits={max(integer, decimals) + 1}")  # no spaces between thousands
    return f"S[{','.join(options)}]"


def _write_cell(text: str, number_format: str, *, is_best: bool) -> str:
    if number_format:
        return f"{{{escape_text(text)}}}" if text in _MISSING else text.replace("−", "-")
    code = escape_text(text)
    if is_best:
        return rf"\textbf{{\boldmath {code}}}" if "$" in code else rf"\textbf{{{code}}}"
    return code


def _estimate_width(headers: Sequence[tuple[str, str]], columns: Sequence[Sequence[str]]) -> int:
    """Estimate the width of a table in characters; the space between two columns is as wide as two characters."""
    widths = [max(map(len, [name, *texts])) for (_, name), texts in zip(headers, columns, strict=True)]
    return sum(widths) + 2 * len(widths)


def _write_row(cells: Sequence[str]) -> str:
    """Write a row. A bracket or star at its start is put in braces, because it would be an argument of the last row."""
    text = " & ".join(cells)
    if text.startswith(("[", "*")):
        text = f"{{{text[0]}}}{text[1:]}"
    return rf"{text} \\"


def _write_token(token: re.Match[str]) -> str:
    parts = token.groupdict()
    if parts["interval"]:
        return f"[{_write_number(parts['low'])}, {_write_number(parts['high'])}]"
    if parts["first"]:
        return f"{_write_number(parts['first'])} to {_write_number(parts['last'])}"
    if number := parts["signed"] or parts["power"]:
        return _write_number(number)
    if letter := parts["letter"]:
        return f"$\\bar{{{_SYMBOLS.get(letter, letter)}}}{_write_subscript(parts['index'])}$"
    if letter := parts["greek"]:
        return f"${_SYMBOLS.get(letter, letter)}{_write_subscript(parts['subscript'])}$"
    return _write_character(parts["other"])


def _write_number(text: str) -> str:
    r"""Write a number in math mode: "−2" gives "$-2$", "5e-05" gives "$5 \times 10^{-5}$"."""
    mantissa, _, exponent = text.replace("−", "-").replace(",", "{,}").partition("e")
    power = rf" \times 10^{{{int(exponent)}}}" if exponent else ""
    return f"${mantissa}{power}$"


def _write_subscript(text: str | None) -> str:
    if not text:
        return ""
    return f"_{{{text}}}" if len(text) == 1 else f"_{{\\mathrm{{{text}}}}}"


def _write_character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character in _SYMBOLS:
        return f"${_SYMBOLS[character]}$"
    if character.isascii() or (character.isalpha() and character <= _LAST_LATIN_LETTER):
        return character if character.isprintable() else " "
    return "" if character == _MACRON else rf"\texttt{{U+{ord(character):04X}}}"
