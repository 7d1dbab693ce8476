"""The widget of one option of a figure, bound to a parameter of the URL.

Each figure declares its options in a Pydantic model (`app.figures.options`). The widget's label, tooltip, choices and
limits, and the name in the URL, are those of the option in this model.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import streamlit as st

from app.figures.options import Options
from app.ui.page_state import Choice, Choices, Flag, Integer, Parameter, Text
from app.ui.widgets import config_form

WidgetKind = Literal["select", "buttons", "slider", "pills", "multiselect", "toggle", "number", "count", "text"]
_LARGEST_COUNT = 10**9


class OptionWidget:
    """An option on the pages that show it. Declare it once, at the top of a module.

    Args:
        options: Model of the options of a figure.
        name: Name of the option.
        pages: Pages with the option.
        kind: The kind of widget. For one of several choices: select, buttons or slider. For several choices: pills or
            multiselect. For a boolean: toggle. For an integer: number, or count, which accepts texts such as 20k. For
            any text: text.
        prefix: Start of the name in the URL, for a page that has the option twice.
        separator: Text between several values in the URL. If empty, the parameter is repeated.
        pins_default: Whether a pinned view (saved in the notebook) contains the value even if it is the default,
            because a later version may have another default.
    """

    def __init__(
        self,
        options: type[Options],
        name: str,
        *pages: str,
        kind: WidgetKind = "select",
        prefix: str = "",
        separator: str = ",",
        pins_default: bool = False,
    ) -> None:
        self.option = option = options.get_option(name)
        self.kind = kind
        url_name = f"{prefix}{option.parameter}"
        self.parameter: Parameter[Any]
        if kind == "toggle":
            self.parameter = Flag(url_name, *pages, default=option.default)
        elif kind == "number":
            limits = {"low": option.minimum, "high": option.maximum}
            self.parameter = Integer(url_name, *pages, default=option.default, **limits)
        elif kind in ("count", "text"):
            self.parameter = Text(url_name, *pages)
        elif kind in ("pills", "multiselect"):
            self.parameter = Choices(url_name, *pages, separator=separator)
        else:
            self.parameter = Choice(url_name, *pages, pins_default=pins_default)

    def select(self) -> Any:
        """Return the choice that the URL contains, without a widget."""
        assert isinstance(self.parameter, Choice)
        return self.parameter.select(list(self.option.choices))

    def draw(
        self,
        choices: Sequence[Any] | None = None,
        format_func: Callable[[Any], str] | None = None,
        *,
        default: Any = None,
        on_change: Callable[[], None] | None = None,
        **arguments: Any,
    ) -> Any:
        """Draw the widget and return the value. A count is its default if the text is empty, and 0 if it is invalid.

        Args:
            choices: The values to choose from. Default: those of the option.
            format_func: Returns the text of a choice. Default: the text in the option.
            default: The default choice, or the default choices. Default: the first choice for a widget of one choice,
                none for a widget of several.
            on_change: Called after a change.
            arguments: Further arguments of Streamlit's widget, such as width. They have priority over label and tooltip
                (help) of the option.
        """
        option, parameter = self.option, self.parameter
        arguments = {"label": option.label, "help": option.tooltip_text or None} | arguments
        if isinstance(parameter, Flag):
            return st.toggle(**arguments, **parameter.bind(on_change))
        if isinstance(parameter, Integer):
            return st.number_input(**arguments, **parameter.bind(on_change), step=1)
        if isinstance(parameter, Text) and self.kind == "count":
            limits = {"default": option.default, "low": 0, "high": _LARGEST_COUNT}
            count = config_form.integer_field(option.label, key=parameter, help_text=option.tooltip_text, **limits)
            return count or 0
        if isinstance(parameter, Text):
            return st.text_input(**arguments, **parameter.bind(on_change))
        values = list(option.choices) if choices is None else list(choices)
        describe = format_func or (lambda value: option.choices.get(value, str(value)))
        if isinstance(parameter, Choices):
            bound = parameter.bind(values, describe, default=default or (), on_change=on_change)
            if self.kind == "pills":
                return st.pills(**arguments, **bound, selection_mode="multi")
            return st.multiselect(**arguments, **bound)
        assert isinstance(parameter, Choice)
        bound = parameter.bind(values, describe, default=default, on_change=on_change)
        if self.kind == "buttons":
            return st.segmented_control(**arguments, **bound, required=True)
        if self.kind == "slider":
            return st.select_slider(**arguments, **bound)
        return st.selectbox(**arguments, **bound)
