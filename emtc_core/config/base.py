"""Section: the frozen pydantic base of every configuration model."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings; strangers are refused; the text under a field is its description."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
