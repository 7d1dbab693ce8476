"""LaTeX code of tables: text with special characters and Greek letters, numbers in math mode, and the tabular.

The code needs the package booktabs and compiles with pdfTeX: it contains no characters outside ASCII except accented
Latin letters.
"""

import re
from collections.abc import Sequence
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
    "Δ": r"\Delta",
    "Σ": r"\Sigma",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\epsilon",
    "λ": r"\lambda",
    "μ": r"\mu",
    "ξ": r"\xi",
    "π": r"\pi",
    "ρ": r"\rho",
    "σ": r"\sigma",
    "τ": r"\tau",
}
"""Character → LaTeX code in math mode."""
_MACRON: Final = "\u0304"
_LAST_LATIN_LETTER: Final = "\u017f"
"""pdfTeX with UTF-8 input can print the accented letters up to this one."""
_NUMBER: Final = r"[+\-−]?\d[\d,]*(?:\.\d+)?(?:e[+\-]?\d+)?"
_TOKEN: Final = re.compile(
    rf"(?P<interval>\[(?P<low>{_NUMBER})(?:–|, )(?P<high>{_NUMBER})\])"
    rf"|(?<![\w.])(?P<first>{_NUMBER})–(?P<last>{_NUMBER})(?!\w)"
    rf"|(?<![\w.)\-−])(?P<signed>[+\-−]\d[\d,]*(?:\.\d+)?(?:e[+\-]?\d+)?)(?!\w)"
    rf"|(?<![\w.])(?P<power>\d[\d,]*(?:\.\d+)?e[+\-]?\d+)(?!\w)"
    rf"|(?P<letter>\w){_MACRON}(?:_(?P<index>[A-Za-z0-9]+))?"
    r"|(?P<greek>[Δα-ω])_(?P<subscript>[A-Za-z0-9]+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


def escape_text(text: str) -> str:
    r"""Write text as LaTeX code. Intervals, signed numbers and powers of ten are in math mode.

    "-5.03 [-5.2–-1.48]" gives "$-5.03$ [$-5.2$, $-1.48$]", and "Δ̄_mem" gives "$\bar{\Delta}_{\mathrm{mem}}$".
    """
    return "".join(map(_write_token, _TOKEN.finditer(text)))


def write_tabular(headers: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Write a tabular environment with the rules of booktabs.

    Args:
        headers: For each column the text above several columns, which may be empty, and the text of the column.
            Adjacent columns with the same upper text share it.
        rows: LaTeX code of the cells.
    """
    lines = [rf"\begin{{tabular}}{{{'l' * len(headers)}}}", r"\toprule"]
    if any(upper for upper, _ in headers):
        cells, rules, first = [], [], 1
        for upper, group in groupby(upper for upper, _ in headers):
            width = len(list(group))
            cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_text(upper)}}}" if upper and width > 1 else "")
            if upper:
                cells[-1] = cells[-1] or escape_text(upper)
                rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
            else:
                cells[-1:] = [""] * width
            first += width
        lines += [_write_row(cells), " ".join(rules)]
    lines += [_write_row([escape_text(name) for _, name in headers]), r"\midrule", *map(_write_row, rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


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
