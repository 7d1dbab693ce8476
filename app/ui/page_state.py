"""The state of a page: parameters of the URL, and the widgets that show and change them.

A page declares each parameter once: its name in the URL, its type, its default, and whether a pinned view contains it.
A pinned view, or pin, is a view that an entry of the research notebook stores with a figure.

`read` returns the value, `write` writes it, and `bind` returns the arguments of a widget. The URL decides: at every
rerun, a bound widget is set to the value in the URL, and a change of the widget is written into the URL. So a link, a
pin and the browser's back button show the same view. A value equal to the default is not in the URL.

A URL may contain anything. A value that cannot be read or does not exist is removed from the URL, and a line on top of
the page states the value and what is shown instead.

Streamlit's own `bind="query-params"` is not used. With Streamlit 1.67, it writes the label of a choice into the URL
(`sort=Win rate`), so a new label breaks links and pins. Code cannot write such a parameter, for example after a click
on a chart. The parameter of a widget that is not drawn is removed, and a value that does not exist has no message.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Generic, TypedDict, TypeVar

import streamlit as st

from app.ui.page_url import get_page, list_names, read_texts, report_missing, write_texts

T = TypeVar("T")
_MAX_CHARACTERS: Final = 500
_MAX_CHARACTERS_IN_LIST: Final = 256
_MAX_VALUES_IN_LIST: Final = 500
_MAX_DIGITS: Final = 18
_WHOLE_NUMBERS_FROM: Final = 20
"""An x range of at least this width, in units of its axis, is written with whole numbers."""
_DECLARED: Final[dict[tuple[str, str], "Parameter[Any]"]] = {}
"""Page and name → parameter. The page is empty for a parameter of every page."""


class Bound(TypedDict):
    """Arguments of a widget that is bound to a parameter: it shows the value in the URL and changes it."""

    key: str
    on_change: Callable[[], None]


class BoundText(Bound):
    """Arguments that bind a text field."""

    max_chars: int


class BoundNumber(Bound):
    """Arguments that bind a number field or a slider."""

    min_value: Any
    max_value: Any


class BoundPages(Bound):
    """Arguments that bind a page number."""

    num_pages: int


class BoundTabs(Bound):
    """Arguments that bind tabs."""

    tabs: Sequence[str]


class BoundChoice(Bound):
    """Arguments that bind a widget with options."""

    options: list[Any]
    format_func: Callable[[Any], str]


class Parameter(Generic[T]):
    """A parameter of the URL.

    Args:
        name: Name in the URL.
        pages: Names of the pages that have it; none: every page.
        default: Value if the URL does not contain the parameter. Default: that of the class.
        is_pinned: Whether a pinned view contains the value.
        pins_default: Whether a pinned view contains the value even if it is the default, because a later version may
            have another default.
    """

    default: T

    def __init__(
        self, name: str, *pages: str, default: T | None = None, is_pinned: bool = True, pins_default: bool = False
    ) -> None:
        self.name = name
        self.pages = pages
        if default is not None:
            self.default = default
        self.is_pinned = is_pinned
        self.pins_default = pins_default
        for page in pages or ("",):
            other = _DECLARED.setdefault((page, name), self)
            # Streamlit executes the script of a page many times, so the same parameter is declared again.
            if type(other) is not type(self) or vars(other) != vars(self):
                raise ValueError(f"the page {page!r} has two different parameters {name!r}")

    @property
    def key(self) -> str:
        """Key of the bound widget on the current page."""
        return f"{get_page() or next(iter(self.pages), '')}?{self.name}"

    @property
    def is_in_url(self) -> bool:
        """Whether the URL contains the parameter."""
        return bool(read_texts(self.name))

    def parse(self, texts: Sequence[str]) -> T:
        """Parse the texts of the parameter in the URL. There is at least one, more if the parameter is repeated.

        Raises:
            ValueError: If they are not a value of this parameter.
        """
        raise NotImplementedError

    def format(self, value: T) -> list[str]:
        """Write a value as texts of the URL. An empty list removes the parameter."""
        return [str(value)]

    def read(self) -> T:
        """Read the value. If it is invalid, return the default and show a notice on the page."""
        return self._read(self.parse, self.default)

    def write(self, value: T | None) -> None:
        """Write a value into the URL; the default and None remove the parameter."""
        is_default = value is None or value == self.default
        write_texts(self.name, [] if is_default else self.format(value))  # type: ignore[arg-type]

    def store(self, default: T | None = None) -> None:
        """Write the value of a widget in a form into the URL. Call this when the form is submitted.

        Args:
            default: A value that is not written, such as the default of a choice.
        """
        value = st.session_state.get(self.key)
        self.write(None if value == default else value)

    def reject(self, replacement: str = "") -> None:
        """Remove the value from the URL, and state that it was not found and what is shown instead."""
        text = ", ".join(read_texts(self.name))
        write_texts(self.name, [])
        report_missing(self.name, text, replacement)

    def read_pinned(self) -> dict[str, list[str]]:
        """Return name → texts for a pinned view; empty if a pinned view does not contain the parameter now."""
        texts = read_texts(self.name)
        if not texts and self.pins_default and st.session_state.get(self.key) is not None:
            texts = self.format(st.session_state[self.key])
        return {self.name: texts} if texts and self.is_pinned else {}

    def _read(
        self,
        parse: Callable[[Sequence[str]], T],
        default: T,
        describe: Callable[[Any], str] = str,
        *,
        accepts_empty_text: bool = False,
    ) -> T:
        """Read the value with a given function instead of `parse`. If it raises ValueError, return the default.

        An empty text gives the default, unless `accepts_empty_text`.
        """
        texts = read_texts(self.name)
        if not texts or not (accepts_empty_text or any(texts)):
            return default
        try:
            return parse(texts)
        except ValueError:
            self.reject("" if default is None else describe(default))
            return default

    def _bind(self, value: T, on_change: Callable[[], None] | None = None, *, default: T | None = None) -> Bound:
        """Set the widget to a value, and return the arguments with which it writes its changes into the URL.

        Args:
            value: The value.
            on_change: Called after a change.
            default: The value that is not written into the URL. Default: that of the parameter.
        """
        key = self.key
        default = self.default if default is None else default
        # An assignment of an equal value would delete the text that the user is typing.
        if key not in st.session_state or st.session_state[key] != value:
            st.session_state[key] = value

        def changed() -> None:
            if key not in st.session_state:  # the browser sent a widget of before `view.switch_to_bundle`
                return
            new_value: Any = st.session_state[key]
            texts = [] if new_value is None or new_value == default else self.format(new_value)
            write_texts(self.name, texts)
            if on_change is not None:
                on_change()

        return Bound(key=key, on_change=changed)


class Text(Parameter[str]):
    """A text of at most `max_characters`. Default: empty."""

    default = ""

    def __init__(self, name: str, *pages: str, max_characters: int = _MAX_CHARACTERS, is_pinned: bool = True) -> None:
        self.max_characters = max_characters
        super().__init__(name, *pages, is_pinned=is_pinned)

    def parse(self, texts: Sequence[str]) -> str:
        """Parse a text of limited length."""
        if len(texts[-1]) > self.max_characters:
            raise ValueError("the text is too long")
        return texts[-1]

    def bind(self, on_change: Callable[[], None] | None = None) -> BoundText:
        """Return the arguments of a text field."""
        return BoundText(**self._bind(self.read(), on_change), max_chars=self.max_characters)


class Flag(Parameter[bool]):
    """A switch, or an expander that is open or closed. Default: off."""

    default = False

    def parse(self, texts: Sequence[str]) -> bool:
        """Parse true or false."""
        text = texts[-1].lower()
        if text not in ("true", "false"):
            raise ValueError("not a flag")
        return text == "true"

    def format(self, value: bool) -> list[str]:
        """Write true or false."""
        return ["true" if value else "false"]

    def bind(self, on_change: Callable[[], None] | None = None) -> Bound:
        """Return the arguments of a switch or an expander."""
        return self._bind(self.read(), on_change)


class Number(Parameter[Any]):
    """A number.

    Args:
        low: Smallest value; None: no limit.
        high: Largest value; None: no limit.
    """

    def __init__(
        self,
        name: str,
        *pages: str,
        default: float | None = None,
        low: float | None = None,
        high: float | None = None,
        is_pinned: bool = True,
    ) -> None:
        self.low = low
        self.high = high
        super().__init__(name, *pages, default=default, is_pinned=is_pinned)

    def parse(self, texts: Sequence[str]) -> float:
        """Parse a number between the limits."""
        return self._check_limits(float(texts[-1]))

    def bind(self, on_change: Callable[[], None] | None = None) -> BoundNumber:
        """Return the arguments of a number field or a slider."""
        return BoundNumber(**self._bind(self.read(), on_change), min_value=self.low, max_value=self.high)

    def _check_limits(self, value: float) -> float:
        is_too_small = self.low is not None and value < self.low
        is_too_large = self.high is not None and value > self.high
        if is_too_small or is_too_large or not isfinite(value):
            raise ValueError("out of the limits")
        return value


class Integer(Number):
    """An integer. Default: none."""

    default: int | None = None

    def parse(self, texts: Sequence[str]) -> int:
        """Parse an integer between the limits."""
        digits = texts[-1].removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
            raise ValueError("not an integer")
        return int(self._check_limits(int(texts[-1])))

    def read_page_number(self, n_pages: int) -> int:
        """Read a page number, from 1. A number above `n_pages` is replaced by `n_pages`, also in the URL."""
        number = self.read() or 1
        if number > n_pages:
            self.write(n_pages)
        return min(number, n_pages)

    def bind_page_number(self, n_pages: int) -> BoundPages:
        """Return the arguments of a choice of the page number."""
        return BoundPages(**self._bind(self.read_page_number(n_pages)), num_pages=n_pages)


class Choice(Parameter[Any]):
    """One of several options; the URL contains `str(option)`.

    The default is the first option, unless `bind` gets another one.

    Args:
        in_url_as_default: Whether the URL contains the value even if it is the default, because new data change the
            default, for example the newest episode.
    """

    default = None

    def __init__(
        self,
        name: str,
        *pages: str,
        in_url_as_default: bool = False,
        is_pinned: bool = True,
        pins_default: bool = False,
    ) -> None:
        self.in_url_as_default = in_url_as_default
        super().__init__(name, *pages, is_pinned=is_pinned, pins_default=pins_default)

    def list_texts(self) -> list[str]:
        """Return the text in the URL as a list of one text; an empty list if the URL has none."""
        text = self.read()
        return [text] if text else []

    def parse(self, texts: Sequence[str]) -> str:
        """Return the text; `bind` looks for its option."""
        if len(texts[-1]) > _MAX_CHARACTERS_IN_LIST:
            raise ValueError("the text is too long")
        return texts[-1]

    def select(self, options: Sequence[Any], format_func: Callable[[Any], str] = str, *, default: Any = None) -> Any:
        """Return the option that the URL contains, without a widget.

        With `in_url_as_default`, also write the option into the URL.
        """
        default = options[0] if default is None else default

        def parse(texts: Sequence[str]) -> Any:
            return _find_option(texts[-1], options)

        value = self._read(parse, default, format_func, accepts_empty_text="" in options)
        if self.in_url_as_default:
            write_texts(self.name, self.format(value))
        return value

    def bind(
        self,
        options: Sequence[Any],
        format_func: Callable[[Any], str] = str,
        *,
        default: Any = None,
        on_change: Callable[[], None] | None = None,
    ) -> BoundChoice:
        """Return the arguments of a choice of one option.

        Args:
            options: The options, at least one. Their texts are the values in the URL.
            format_func: Label of an option.
            default: The default option. Default: the first one.
            on_change: Called after a change.
        """
        default = options[0] if default is None else default
        value = self.select(options, format_func, default=default)
        bound = self._bind(value, on_change, default=None if self.in_url_as_default else default)
        return BoundChoice(**bound, options=list(options), format_func=format_func)

    def bind_tabs(self, titles: Sequence[str]) -> BoundTabs:
        """Return the arguments of tabs."""
        return BoundTabs(**self._bind(self.select(titles), default=titles[0]), tabs=titles)


class Choices(Parameter[list[Any]]):
    """Several options; the URL contains `str(option)` of each.

    Args:
        separator: Separates the texts in the URL. If empty, the parameter is repeated.
    """

    def __init__(self, name: str, *pages: str, separator: str = ",", is_pinned: bool = True) -> None:
        self.separator = separator
        super().__init__(name, *pages, default=[], is_pinned=is_pinned)

    def parse(self, texts: Sequence[str]) -> list[str]:
        """Parse "a,b", a repeated parameter, or both."""
        parts: list[str] = []
        for text in texts:
            parts += text.split(self.separator) if self.separator else [text]
        parts = [part.strip() for part in parts]
        parts = [part for part in parts if part and len(part) <= _MAX_CHARACTERS_IN_LIST]
        return list(dict.fromkeys(parts))[:_MAX_VALUES_IN_LIST]

    def format(self, value: Sequence[Any]) -> list[str]:
        """Join the texts with the separator.

        If nothing is selected, return one empty text. An empty list would remove the parameter, and a URL without the
        parameter means the default.
        """
        texts = [str(item) for item in value]
        if self.separator:
            return [self.separator.join(texts)]
        return texts or [""]

    def bind(
        self,
        options: Sequence[Any],
        format_func: Callable[[Any], str] = str,
        *,
        default: Sequence[Any] = (),
        on_change: Callable[[], None] | None = None,
    ) -> BoundChoice:
        """Return the arguments of a choice of several options. A selected value stays an option if `options` loses it.

        Args:
            options: The options. Their texts are the values in the URL.
            format_func: Label of an option.
            default: The options that are selected if the URL does not contain the parameter.
            on_change: Called after a change.
        """
        former_values = st.session_state.get(self.key) or ()
        all_options = [*options, *(value for value in former_values if value not in options)]
        values = list(default)
        unknown: list[str] = []
        if self.is_in_url:
            values = []
            for text in self.read():
                try:
                    values.append(_find_option(text, all_options))
                except ValueError:
                    unknown.append(text)
        values = list(dict.fromkeys(values))
        if unknown:
            values = values or list(default)
            write_texts(self.name, [] if values == list(default) else self.format(values))
            report_missing(self.name, ", ".join(unknown), ", ".join(map(format_func, values)))
        bound = self._bind(values, on_change, default=list(default))
        listed = [*options, *(value for value in values if value not in options)]
        return BoundChoice(**bound, options=listed, format_func=format_func)


class Window(Parameter[tuple[float, float] | None]):
    """The visible x range of a chart, such as 0-150. Default: none, which means the whole range."""

    default = None

    def parse(self, texts: Sequence[str]) -> tuple[float, float]:
        """Parse the two limits."""
        low, _, high = texts[-1].partition("-")
        window = float(low), float(high)
        if not (all(map(isfinite, window)) and window[0] < window[1]):
            raise ValueError("not a window")
        return window

    def format(self, value: tuple[float, float] | None) -> list[str]:
        """Write the two limits as whole numbers, or with two digits after the point if the range is short.

        "-" separates the limits, so a range with a negative limit cannot be written.
        """
        if value is None or value[0] < 0:
            return []
        digits = 0 if value[1] - value[0] >= _WHOLE_NUMBERS_FROM else 2
        return [f"{value[0]:.{digits}f}-{value[1]:.{digits}f}"]

    def on_window(self, window: Sequence[float] | None) -> None:
        """Write the x range that the user has selected on a chart; None or an empty range removes it."""
        self.write((window[0], window[1]) if window else None)


class Fields(Parameter[dict[str, str]]):
    """All parameters in the URL whose names are fields of a page's form, together. The declared name is "*".

    Args:
        page: Name of the page.
        is_field: Whether a name is a field of the form.
    """

    def __init__(self, page: str, is_field: Callable[[str], bool]) -> None:
        self.is_field = is_field
        super().__init__("*", page, default={})

    def read(self) -> dict[str, str]:
        """Read the texts of the fields in the URL."""
        values: dict[str, str] = {}
        for name in list_names():
            texts = read_texts(name)
            if texts and self.is_field(name):
                values[name] = texts[-1]
        return values

    def write(self, value: Mapping[str, str] | None) -> None:
        """Write the texts of all fields. A field that is not in `value` is removed from the URL."""
        texts = value or {}
        for name in self.read().keys() - texts.keys():
            write_texts(name, [])
        for name, text in texts.items():
            write_texts(name, [text])

    def read_pinned(self) -> dict[str, list[str]]:
        """Return name → texts of all fields, for a pinned view."""
        return {name: [text] for name, text in self.read().items()}

    def list_undeclared(self) -> list[str]:
        """List the names in the URL that are neither fields nor parameters of the page."""
        declared = {parameter.name for parameter in list_parameters(self.pages[0])}
        return [name for name in list_names() if not self.is_field(name) and name not in declared]

    def remove_undeclared(self) -> None:
        """Remove the names that `list_undeclared` lists from the URL."""
        for name in self.list_undeclared():
            write_texts(name, [])


def list_parameters(page: str) -> list[Parameter[Any]]:
    """List the declared parameters of a page, including those of every page."""
    return [parameter for (declared_page, _), parameter in _DECLARED.items() if declared_page in ("", page)]


def read_pinned() -> dict[str, list[str]]:
    """Return name → texts of all parameters that a pinned view of the current page contains."""
    query: dict[str, list[str]] = {}
    for parameter in list_parameters(get_page()):
        query |= parameter.read_pinned()
    return query


def without_on_change(bound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a bound widget without `on_change`, which Streamlit does not allow in a form.

    Call `store` of the parameter when the form is submitted.
    """
    return {name: value for name, value in bound.items() if name != "on_change"}


def _find_option(text: str, options: Sequence[Any]) -> Any:
    """Find an option by its text.

    Raises:
        ValueError: If there is none.
    """
    for option in options:
        if str(option) == text:
            return option
    raise ValueError(f"no option {text!r}")


RUN: Final = Text("run", max_characters=64)
"""Id of the run that the page shows, or the start of the id."""
RUNS: Final = Choices("runs", "compare")
"""Ids of the compared runs, or the starts of the ids."""
EPISODE: Final = Choice("episode", "replay", in_url_as_default=True)
"""Number of the replayed training episode."""
START: Final = Integer("t", "replay", low=0)
"""Step of the episode at which the replay starts."""
PLAY: Final = Choice("play", "replay", in_url_as_default=True)
"""The replayed evaluation episode, as the text "<env step>-<episode>"."""
POINT: Final = Integer("point", "memory", low=0)
"""The selected node, which is a stored state of the episodic memory: its slot, the index in the memory."""
SWEEP: Final = Choice("sweep", "sweeps", in_url_as_default=True)
"""Id of the selected sweep."""
WINDOW: Final = Window("x", "live", "compare", "run")
"""Visible x range of the charts [env steps]."""
TOUR: Final = Integer("tour", low=1, is_pinned=False)
"""Step of the tour (`app.ui.widgets.tour`), from 1."""
MARK: Final = Integer("mark", "memory", low=0, is_pinned=False)
"""Slot of a node that the memory map marks with a ring, without selecting it."""
