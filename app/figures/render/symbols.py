"""Symbols in labels → Matplotlib's mathematics: "Δ̄_mem" becomes a bar over a Delta with an upright index."""

import re

_GREEK = {
    "Δ": r"\Delta",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\epsilon",
    "λ": r"\lambda",
    "μ": r"\mu",
    "ξ": r"\xi",
    "ρ": r"\rho",
    "σ": r"\sigma",
    "τ": r"\tau",
}
_BAR = "\u0304"
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LATIN = r"(?<![\w.])(?:[NQpr](?=_)|[VH](?=\*)|H(?!\w))"
_SYMBOL = re.compile(
    rf"(?P<base>[{''.join(_GREEK)}]|{_LATIN})(?P<bar>{_BAR})?(?:_(?P<index>[A-Za-z]+|ξ))?(?P<star>\*)?(?P<prime>′)?"
)


def make_printable(text: str) -> str:
    """Replace what no font has and no SVG may hold: a run's name is whatever somebody wrote."""
    return _UNPRINTABLE.sub("\ufffd", text)


def set_as_math(text: str) -> str:
    """Write the symbols of a label as mathtext; every other character stays what it is, dollars too."""
    escaped = make_printable(text).replace("$", r"\$").replace("log₁₀", "\0")
    return _SYMBOL.sub(_symbol, escaped).replace("\0", r"$\log_{10}$")


def _symbol(found: re.Match[str]) -> str:
    base = _GREEK.get(found["base"], found["base"])
    if found["bar"]:
        base = rf"\bar{{{base}}}"
    if found["index"]:
        index = _GREEK.get(found["index"], rf"\mathrm{{{found['index']}}}")
        base = f"{base}_{{{index}}}"
    if found["star"] or found["prime"]:
        base = f"{base}^{{{'*' if found['star'] else ''}{chr(92) + 'prime' if found['prime'] else ''}}}"
    return f"${base}$"
