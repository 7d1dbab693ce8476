"""Section: the frozen pydantic base of every configuration model."""

from typing import Final

from pydantic import BaseModel, ConfigDict

LARGEST: Final = 10**12
"""No count of steps, episodes or samples is larger: it fits 64 bits, and so does a sum of many of them."""


class Section(BaseModel):
    """A frozen group of settings; strangers are refused; the text under a field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # a key that Python reserves is written as the user writes it
        validate_by_name=True,
        validate_by_alias=True,
    )
