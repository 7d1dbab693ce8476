"""The widget of one option of a figure, bound to a parameter of the URL.

Label, tooltip, choices and the name in the URL are those of the option in the model of the figure.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import streamlit as st

from app.figures.options import Options
from app.ui.page_state import Choice, Choices, Flag, Parameter, Text
from app.ui.widgets import config_form

WidgetKind = Literal["select", "buttons", "pills", "multiselect", "toggle", "count", "text"]
_LARGEST_COUNT = 10**9


class OptionWidget:
    """An option on the pages that show it. Declare it once, at the top of a module.

    Args:
        options: Model of the options of a figure.
        name: Name of the option.
        pages: Pages with the option.
        kind: One of several values: select or buttons. Several values: pills or multiselect. True or false: toggle. A
            number that is typed, such as 20k: count. Another text: text.
        separator: Between several values in the URL. If empty, the parameter is repeated.
        pins_default: Whether a pinned view contains the default, too, because later versions may change it.
    """

    def __init__(
        self,
        options: type[Options],
        name: str,
        *pages: str,
        kind: WidgetKind = "select",
        separator: str = ",",
        pins_default: bool = False,
    ) -> None:
        self.option = options.get_option(name)
        self.kind = kind
        self.parameter: Parameter[Any]
        if kind == "toggle":
            self.parameter = Flag(self.option.parameter, *pages, default=self.option.default)
        elif kind in ("count", "text"):
            self.parameter = Text(self.option.parameter, *pages)
        elif kind in ("pills", "multiselect"):
            self.parameter = Choices(self.option.parameter, *pages, separator=separator)
        else:
            self.parameter = Choice(self.option.parameter, *pages, pins_default=pins_default)

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
        help: str = "",
        placeholder: str | None = None,
        width: int | Literal["stretch"] = "stretch",
        on_change: Callable[[], None] | None = None,
    ) -> Any:
        """Draw the widget and return the value. A count is 0 if its text is empty or is not a number.

        Args:
            choices: The values to choose from. Default: those of the option.
            format_func: Text of a value. Default: that of the option.
            default: The default choice. Default: the first one; of several values, none.
            help: Tooltip. Default: that of the option.
            placeholder: Text in an empty field.
            width: Width of the widget [pixels].
            on_change: Called after a change.
        """
        option, parameter = self.option, self.parameter
        label, texts, tooltip = option.label, option.choices, help or option.tooltip_text or None
        if isinstance(parameter, Flag):
            return st.toggle(label, **parameter.bind(on_change), help=tooltip)
        if isinstance(parameter, Text):
            if self.kind == "count":
                count = config_form.integer_field(
                    label, key=parameter, default=0, low=0, high=_LARGEST_COUNT, help_text=tooltip
                )
                return count or 0
            return st.text_input(label, **parameter.bind(on_change), help=tooltip, placeholder=placeholder, width=width)
        values = list(texts) if choices is None else list(choices)
        describe = format_func or (lambda value: texts.get(value, str(value)))
        if isinstance(parameter, Choices):
            bound = parameter.bind(values, describe, default=default or (), on_change=on_change)
            if self.kind == "pills":
                return st.pills(label, **bound, selection_mode="multi", help=tooltip)
            return st.multiselect(label, **bound, help=tooltip, placeholder=placeholder, width=width)
        assert isinstance(parameter, Choice)
        bound = parameter.bind(values, describe, default=default, on_change=on_change)
        if self.kind == "buttons":
            return st.segmented_control(label, **bound, required=True, help=tooltip)
        return st.selectbox(label, **bound, help=tooltip, width=width)
