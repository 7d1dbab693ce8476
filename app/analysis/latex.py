"""LaTeX code of tables: text with special characters and Greek letters, numbers in math mode, and the tabular.

A column of plain numbers is an S column of siunitx, which aligns the decimal points. The code compiles with pdfTeX and
siunitx 2 or 3: it contains no characters outside ASCII except accented Latin letters. Its first line is a comment with
the packages that it needs.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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
_NARROW: Final = 38.0
"""Width that fits into the text of NeurIPS (5.5 inches) at 10 pt [em]."""
_SIZES: Final = ((r"\footnotesize", 58.0), (r"\scriptsize", 66.5))
"""Font sizes of wide tables, 8 and 7 pt in a document of 10 pt, and the widths that fit into 6.75 inches [em]."""
_CAPACITY: Final = _SIZES[-1][1]
"""Width of the widest table [em]."""
_COLUMN_SPACE, _NARROW_COLUMN_SPACE = 1.2, 0.7
"""Space between two columns in narrow and in wide tables [em]."""
_SHORTEST_LINE, _LONGEST_LINE = 6.0, 30.0
"""Widths of the lines of a wrapped text [em]."""
_MAX_HEADER_LINES: Final = 4
_MAX_LINES: Final = 60
"""Lines of text in one tabular environment, which cannot break across pages."""
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


@dataclass(frozen=True)
class TabularLayout:
    """How a table is arranged on a page."""

    panels: tuple[tuple[int, ...], ...]
    """The columns of each tabular environment. Several environments are below each other."""
    headings: int = 0
    """Number of leading columns that are written as lines above their rows."""
    size: str = ""
    """Command of the font size. It is empty for a narrow table, which is written as it is."""
    widths: tuple[float, ...] = ()
    """Width of each column [em]."""
    wrapped: frozenset[int] = frozenset()
    """Columns whose texts are wrapped to the width of the column."""

    def measure(self, columns: Sequence[int]) -> float:
        """Measure columns with the space between them [em]."""
        return sum(self.widths[i] + _NARROW_COLUMN_SPACE for i in columns)


def write_tabular(
    headers: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    best: Collection[tuple[int, int]] = (),
    comments: Sequence[str] = (),
    n_keys: int = 1,
) -> str:
    """Write a tabular environment with the rules of booktabs, after a comment with the packages that it needs.

    A table that is wider than the text of a page gets a smaller font, lines with repeated texts above their rows,
    wrapped texts, and several tabular environments below each other, as far as it needs them (`find_layout`). It is
    scaled down only in a document whose text is narrower than 6.75 inches.

    Args:
        headers: For each column the text above several columns, which may be empty, and the text of the column.
            Adjacent columns with the same upper text share it.
        rows: The texts of the cells.
        best: Cells in bold, as (row, column).
        comments: Lines between the comment with the packages and the table.
        n_keys: Number of leading columns that identify a row. Each tabular environment has them.
    """
    layout = find_layout(headers, rows, n_keys=n_keys)
    bold_columns = {column for _, column in best}
    formats = ["" if i in bold_columns else _find_number_format([row[i] for row in rows]) for i in range(len(headers))]
    blocks = _split_rows(rows, layout)
    environments = [
        _write_environment(headers, rows, formats, layout, columns, block, best)
        for columns in layout.panels
        for block in blocks
    ]
    lines = environments[0]
    packages = ["booktabs"]
    if layout.wrapped:
        packages.insert(0, "array")
    if layout.size:
        packages.append("graphicx")
        start = (
            r"\noindent\resizebox{\ifdim\width>\textwidth \textwidth\else \width\fi}{!}{% at most as wide as the text"
        )
        lines = [rf"{{{layout.size}\setlength{{\tabcolsep}}{{{_NARROW_COLUMN_SPACE / 2:g}em}}%"]
        for i, environment in enumerate(environments):
            lines += [r"\par\medskip"] if i else []
            lines += [start, *environment[:-1], rf"{environment[-1]}}}"]
        lines.append(r"\par}")
    if any(formats):
        packages.append("siunitx")
    return "\n".join([rf"% \usepackage{{{','.join(packages)}}}", *comments, *lines])


def find_layout(headers: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], *, n_keys: int = 1) -> TabularLayout:
    """Find the layout in which a table is readable in a text of 6.75 inches; see `write_tabular`."""
    columns = [[row[i] for row in rows] for i in range(len(headers))]
    every = tuple(range(len(headers)))
    widths = tuple(
        max([_measure(name), *map(_measure, column)]) for (_, name), column in zip(headers, columns, strict=True)
    )
    if sum(widths) + _COLUMN_SPACE * len(widths) <= _NARROW:
        return TabularLayout((every,))
    min_headers = [max(_measure_longest_word(name), _measure(name) / _MAX_HEADER_LINES) for _, name in headers]
    widths = tuple(max([low, *map(_measure, column)]) for low, column in zip(min_headers, columns, strict=True))
    layout = TabularLayout((every,), widths=widths)
    for headings in range(_count_headings(headers, columns) + 1):
        for size, capacity in _SIZES:
            layout = replace(layout, panels=(every[headings:],), headings=headings, size=size)
            if layout.measure(layout.panels[0]) <= capacity:
                return layout
    min_widths = [
        max([low, *map(_measure_longest_word, column)]) for low, column in zip(min_headers, columns, strict=True)
    ]
    texts = [i for i in layout.panels[0] if not _find_number_format(columns[i])]
    texts_without_intervals = [i for i in texts if not any("[" in text for text in columns[i])]
    for wrappable in (texts_without_intervals, texts):
        layout = _wrap_columns(replace(layout, widths=widths), wrappable, min_widths)
        if layout.measure(layout.panels[0]) <= _CAPACITY:
            return layout
    return _split_columns(layout, max(n_keys - layout.headings, 1))


def _wrap_columns(layout: TabularLayout, wrappable: Sequence[int], min_widths: Sequence[float]) -> TabularLayout:
    """Wrap the widest columns of a table, and then more of them, until it fits into the text."""
    limit, wrapped = _LONGEST_LINE, layout
    while limit >= _SHORTEST_LINE and wrapped.measure(wrapped.panels[0]) > _CAPACITY:
        widths = [
            max(min(width, limit), min_widths[i]) if i in wrappable else width for i, width in enumerate(layout.widths)
        ]
        narrowed = frozenset(i for i in wrappable if widths[i] < layout.widths[i])
        wrapped = replace(layout, widths=tuple(widths), wrapped=narrowed)
        limit -= 0.5
    return wrapped


def _split_columns(layout: TabularLayout, n_keys: int) -> TabularLayout:
    """Split a table into panels of about equal widths that fit into the text. Each has the first `n_keys` columns."""
    keys, others = layout.panels[0][:n_keys], layout.panels[0][n_keys:]
    free = max(_CAPACITY - layout.measure(keys), 1.0)
    mean = layout.measure(others) / math.ceil(layout.measure(others) / free)
    panels: list[tuple[int, ...]] = [keys]
    for i in others:
        width = layout.measure(panels[-1][n_keys:])
        if panels[-1] != keys and (width >= mean or width + layout.measure([i]) > free):
            panels.append(keys)
        panels[-1] = (*panels[-1], i)
    return replace(layout, panels=tuple(panels))


def _count_headings(headers: Sequence[tuple[str, str]], columns: Sequence[Sequence[str]]) -> int:
    """Count the leading columns of texts that repeat in consecutive rows, so that lines can contain them."""
    count = 0
    for (upper, _), column in zip(headers[:-1], columns[:-1], strict=True):
        starts = sum(1 for _ in groupby(zip(*columns[: count + 1], strict=True)))
        if upper or _find_number_format(column) or 2 * starts > len(column):
            break
        count += 1
    return count


def _split_rows(rows: Sequence[Sequence[str]], layout: TabularLayout) -> list[range]:
    """Split the rows of a wide table into blocks of at most `_MAX_LINES` lines, if possible between two headings."""
    if not layout.size:
        return [range(len(rows))]
    starts, n_lines, last_heading = [0], 0, 0
    lines = [
        1 + max((math.ceil(1.1 * _measure(row[i]) / layout.widths[i]) - 1 for i in layout.wrapped), default=0)
        for row in rows
    ]
    for i, row in enumerate(rows):
        is_new = bool(i) and row[: layout.headings] != rows[i - 1][: layout.headings]
        lines[i] += 1 if is_new or (layout.headings and not i) else 0
        last_heading = i if is_new else last_heading
        n_lines += lines[i]
        if n_lines > _MAX_LINES and i > starts[-1]:
            start = last_heading if last_heading > starts[-1] else i
            starts.append(start)
            n_lines = sum(lines[start : i + 1])
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def _write_environment(
    headers: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    formats: Sequence[str],
    layout: TabularLayout,
    columns: Sequence[int],
    block: range,
    best: Collection[tuple[int, int]],
) -> list[str]:
    """Write the lines of one tabular environment: some columns of some rows."""
    specs = "".join(_write_column(formats[i], i, layout) for i in columns)
    lines = [rf"\begin{{tabular}}{{{specs}}}", r"\toprule"]
    if any(headers[i][0] for i in columns):
        cells, rules, first = [], [], 1
        for upper, group in groupby(headers[i][0] for i in columns):
            width = len(list(group))
            if upper:
                text = escape_text(upper)
                cells.append(rf"\multicolumn{{{width}}}{{c}}{{{text}}}" if width > 1 else f"{{{text}}}")
                rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
            else:
                cells += [""] * width
            first += width
        lines += [_write_row(cells), " ".join(rules)]
    names = [_wrap(headers[i][1], layout.widths[i]) if layout.size else [headers[i][1]] for i in columns]
    n_lines = max(map(len, names))
    for line in range(n_lines):  # aligned at the bottom
        texts = [escape_text(name[line - n_lines + len(name)]) if line >= n_lines - len(name) else "" for name in names]
        lines.append(
            _write_row([f"{{{text}}}" if formats[i] else text for i, text in zip(columns, texts, strict=True)])
        )
    lines.append(r"\midrule")
    previous: Sequence[str] = [""] * layout.headings
    for i in block:
        headings = rows[i][: layout.headings]
        changed = next((k for k in range(layout.headings) if headings[k] != previous[k]), layout.headings)
        if changed < layout.headings:
            lines += [r"\addlinespace"] if i > block.start else []
            text = escape_text(": ".join(headings[changed:]))
            lines.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{\itshape {text}}} \\")
        previous = headings
        cells = [_write_cell(rows[i][k], formats[k], is_best=(i, k) in best) for k in columns]
        lines.append(_write_row(cells))
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _write_column(number_format: str, column: int, layout: TabularLayout) -> str:
    if column in layout.wrapped:
        share = layout.widths[column] / _CAPACITY
        return rf">{{\raggedright\arraybackslash}}p{{{share:.3f}\textwidth}}"
    return number_format or "l"


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


def _measure(text: str) -> float:
    """Estimate the width of a text in Times [em]."""
    return sum(
        0.0 if c == _MACRON else 0.7 if c.isupper() else 0.5 if c.isdigit() else 0.46 if c.isalpha() else 0.36
        for c in text
    ) + 0.25 * sum(c in "+-−=<>→" for c in text)


def _measure_longest_word(text: str) -> float:
    return max(map(_measure, text.split()), default=0.0)


def _wrap(text: str, width: float) -> list[str]:
    """Split a text into lines of at most this width [em]; a longer word is a line."""
    lines: list[str] = []
    for word in text.split():
        if lines and _measure(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


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
