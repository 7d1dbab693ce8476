"""Section: the frozen pydantic base of every configuration model."""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict

LARGEST: Final = 10**12
"""No count of steps, episodes or samples is larger: it fits 64 bits, and so does a sum of many of them."""


Value = str | int | float | bool | None
WITH_A_MEMORY: Final = ("emtc-", "emu-", "emc")
"""How the names of algorithms begin that write an episodic memory."""


@dataclass(frozen=True)
class Before:
    """What a setting was before it existed, and in which runs: of an environment, of algorithms that start so.

    It stands in the setting's annotation where that is not the default of today.
    """

    value: Value
    env: str = ""
    algos: tuple[str, ...] = ()


@dataclass(frozen=True)
class Formerly:
    """The key of a setting in earlier versions, which is still read; it stands in the setting's annotation."""

    key: str


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
