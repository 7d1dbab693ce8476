"""Scripts, HTML and CSS of the canvas components in the browser. There is no build step and no download.

Maps do not use Plotly: one million points take 2.8 s with these scripts, and 42 to 57 s with Plotly's scattergl.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent


def read_asset(name: str) -> str:
    """Read one file of `assets/`."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def read_script(*names: str) -> str:
    """Read the scripts of a canvas component, and put the functions that all of them share before them.

    Comments and indentation are removed, a fifth of the text: Streamlit sends the script again with every chart. No
    script has a text of several lines.
    """
    text = "\n".join(read_asset(name) for name in ("line_marker.js", "common.js", *names))
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
