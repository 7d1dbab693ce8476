"""Options of image files, which every figure has: width, title, font, names of lines, and replaced texts.

They are declared once, in `ImageOptions`. `emtc export` has a flag for each, the button *Export* of the pages has a
widget for each, and `draw_named` accepts them in scripts and notebooks.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace
from app.figures.options import Option, Options, convert_with
from emtc_core.errors import ConfigError

Labels = tuple[tuple[str, str], ...]
"""Pairs (old text, new text)."""
LineNames = Literal["auto", "legend", "labels"]
T = TypeVar("T")
COLUMN_WIDTHS: Final = {"one": 3.25, "two": 6.75}
"""Width of one and of two columns of the NeurIPS and ICML templates [inch]."""
DEFAULT_FONT: Final = "sans"
_INCHES_PER_UNIT: Final = {"": 1.0, "in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
_MIN_WIDTH = 2.0  # inch
_MAX_WIDTH = 20.0  # inch
_SHOWN_TEXTS: Final[dict[type, tuple[str, ...]]] = {
    Chart: ("title", "x_label"),
    Panel: ("title", "axis"),
    Line: ("name", "label", "group"),
    Mark: ("label",),
    Cloud: ("title", "x_label", "y_label"),
    Maps: ("title",),
    Trace: ("label",),
    Heatmap: ("title", "x_label", "y_label", "value_label"),
    Grid: ("title",),
}
"""Fields with texts that a reader sees. All of them can be replaced with `--label`."""
_FIELDS_WITH_PARTS: Final = ("panels", "lines", "marks", "traces", "grids")
"""Fields whose values are parts of a figure, which also contain texts."""


def read_width(value: Any) -> float:
    """Read a width [inch] from "3.25in", "8cm", 6.75, or "one" or "two" columns of a paper.

    Raises:
        ValueError: If it is not a width from 2 to 20 inches.
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([a-z]*)\s*", str(value))
    if match is None:
        return COLUMN_WIDTHS[str(value)]  # a KeyError also means that the value is not valid, see `convert_with`
    width = float(match[1]) * _INCHES_PER_UNIT[match[2]]
    if not _MIN_WIDTH <= width <= _MAX_WIDTH:
        raise ValueError(value)
    return width


def read_labels(value: Any) -> Labels:
    """Read replacements of texts from "A=B", one per line, from a list of texts or pairs, or from a mapping A → B.

    "=" with spaces around it is part of a text, as in "τ = 0.6".

    Raises:
        ValueError: If a text contains no "=" or nothing before it.
    """
    if isinstance(value, Mapping):
        return tuple((str(old), str(new)) for old, new in value.items())
    labels: list[tuple[str, str]] = []
    for text in value.splitlines() if isinstance(value, str) else value:
        if isinstance(text, tuple):
            old, new = text
            labels.append((str(old), str(new)))
            continue
        if not text.strip():
            continue
        old, new = re.split(r"(?<!\s)=(?!\s)", text.strip(), maxsplit=1)  # at the first "=" without spaces
        if not old:
            raise ValueError(text)
        labels.append((old, new))
    return tuple(labels)


class ImageOptions(Options):
    """Options of image files. `label` also has an effect on HTML pages and CSV files."""

    width: Annotated[
        float,
        convert_with(read_width),
        Option(
            "Width",
            "Width of an image, for example 3.25in (one column of NeurIPS and ICML) or 6.75in (two). Default: 6.75in",
            choices={"6.75in": "Page, 6.75 in", "3.25in": "Column, 3.25 in"},
            rule="a width from 2in to 20in such as 3.25in or 8cm, or one or two (columns of a paper)",
            has_flag=True,
        ),
    ] = COLUMN_WIDTHS["two"]
    no_title: Annotated[
        bool,
        Option(
            "No title",
            "Leave out title and subtitle of an image, which a paper states in its caption",
            has_flag=True,
        ),
    ] = False
    font: Annotated[
        str,
        Option(
            "Font",
            "Font of an image: sans (as Arial), serif (as Times, the font of NeurIPS and ICML), or the name of an "
            "installed font. Default: sans",
            choices={"sans": "Sans (Arial)", "serif": "Serif (Times)"},
            rule="sans, serif or the name of an installed font",
            has_flag=True,
        ),
    ] = DEFAULT_FONT
    line_names: Annotated[
        LineNames,
        Option(
            "Names of lines",
            "Where an image names its lines: legend, or labels at the ends of the lines if they fit. Default: auto, "
            "labels in a wide image of one panel",
            choices={"auto": "Automatic", "legend": "Legend", "labels": "Labels at the lines"},
            rule="auto, legend or labels",
            has_flag=True,
        ),
    ] = "auto"
    labels: Annotated[
        Labels,
        Field(alias="label"),
        convert_with(read_labels),
        Option(
            "Other texts",
            "Write the text A of a figure as B, for example EMTC(QPLEX)=Ours. A is the name of a line, the title of an "
            "axis or panel, or a part of it between commas",
            rule="A=B: the text A of the figure is written as B",
            has_flag=True,
        ),
    ] = ()


DEFAULT_IMAGE_OPTIONS: Final = ImageOptions()


def read_image_options(values: Mapping[str, Any]) -> tuple[ImageOptions, dict[str, Any]]:
    """Validate the options of images among `values`.

    Returns:
        The options of images, and all other values.

    Raises:
        ConfigError: If a value is not valid.
    """
    names = ImageOptions.list_options()
    image_values = {name: value for name, value in values.items() if name in names}
    figure_values = {name: value for name, value in values.items() if name not in names}
    return ImageOptions.read(image_values), figure_values


def replace_labels(figure: AnyFigure, labels: Labels) -> AnyFigure:
    """Replace texts of a figure. The number of seeds after a name stays.

    Raises:
        ConfigError: If a text is not in the figure.
    """
    for old, new in labels:
        # a whole text, or a part of it between commas; before the dagger of unfinished runs and the number of seeds
        pattern = re.compile(rf"(?:^|(?<=, )){re.escape(old)}(?=$|, |†| \(n = )")
        texts: list[str] = []
        figure = _map_texts(figure, partial(_collect_and_replace, pattern, new, texts))
        if not any(map(pattern.search, texts)):
            hint = f"Its texts are: {'; '.join(dict.fromkeys(filter(None, texts)))}."
            raise ConfigError("is not a text of this figure", key="label", value=old, hint=hint)
    return figure


def _collect_and_replace(pattern: re.Pattern[str], new: str, texts: list[str], text: str) -> str:
    """Add a text to `texts`, and replace the pattern in it."""
    texts.append(text)
    return pattern.sub(lambda _: new, text)  # a function, because a backslash in `new` does not refer to a group


def _map_texts(part: T, convert: Callable[[str], str]) -> T:
    """Convert the shown texts of a figure and of its parts."""
    changes: dict[str, Any] = {name: convert(getattr(part, name)) for name in _SHOWN_TEXTS[type(part)]}
    for name in _FIELDS_WITH_PARTS:
        children = getattr(part, name, None)
        if isinstance(children, tuple):
            changes[name] = tuple(None if child is None else _map_texts(child, convert) for child in children)
    return replace(part, **changes)  # type: ignore[type-var]
