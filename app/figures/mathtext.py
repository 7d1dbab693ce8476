"""Symbols in labels as Matplotlib's mathtext: "Δ̄_mem" becomes a Delta with a bar and an index."""

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
_SYMBOL = re.compile(
    rf"""
    (?P<base>
        [{"".join(_GREEK)}]                          # a Greek letter
        |                                            # or a Latin letter
        (?: (?<![\w.]) | (?<=[{"".join(_GREEK)}]) )  # at the start of a word or after a Greek letter:
        (?: [NQpr](?=_) | [VH](?=\*) | H(?!\w) )     # "N_call", "r_p", "V*", "H"; not the H of "High"
    )
    (?P<bar>{_BAR})?                                 # "β̄"
    (?: _ (?P<index>[A-Za-z]+|ξ) )?                  # "Δ_mem", "N_ξ"
    (?P<star>\*)?                                    # "V*"
    (?P<prime>′)?                                    # "H′"
    """,
    re.VERBOSE,
)


def replace_unprintable(text: str) -> str:
    """Replace characters that fonts do not have or SVG forbids. A user can write any text as the name of a run."""
    return _UNPRINTABLE.sub("\ufffd", text)


def format_mathtext(text: str) -> str:
    """Convert the symbols of a label to mathtext. The other text is shown unchanged, also its dollar signs."""
    # "\0" replaces log₁₀ until the other symbols are converted
    escaped = replace_unprintable(text).replace("$", r"\$").replace("log₁₀", "\0")
    return _SYMBOL.sub(_format_symbol, escaped).replace("\0", r"$\log_{10}$")


def _format_symbol(match: re.Match[str]) -> str:
    base = _GREEK.get(match["base"], match["base"])
    if match["bar"]:
        base = rf"\bar{{{base}}}"
    if match["index"]:
        index = _GREEK.get(match["index"], rf"\mathrm{{{match['index']}}}")
        base = f"{base}_{{{index}}}"
    star = "*" if match["star"] else ""
    prime = r"\prime" if match["prime"] else ""
    if star or prime:
        base = f"{base}^{{{star}{prime}}}"
    return f"${base}$"
