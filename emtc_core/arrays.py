"""Dimension letters and the shape check that public functions call on entry.

Letters used as suffixes of local arrays: B environments or episodes, T steps, N agents, A actions,
O observation, S state, X embedding (4), M memory nodes, Q queries, K neighbors, H hidden.
"""

from typing import Protocol

from emtc_core.errors import ShapeError


class HasShape(Protocol):
    """Anything with a shape: a NumPy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_shape(name: str, array: HasShape, expected: tuple[int | None, ...]) -> None:
    """Refuse an array whose shape differs from `expected`; None stands for any length.

    Raises:
        ShapeError: With the name, the rule and the shape that came.
    """
    shape = tuple(array.shape)
    if len(shape) == len(expected) and all(e is None or e == s for e, s in zip(expected, shape, strict=True)):
        return
    wanted = ", ".join("any" if e is None else str(e) for e in expected)
    hint = (
        " Did you transpose it?"
        if len(shape) == len(expected)
        and sorted(shape) == sorted(s if e is None else e for e, s in zip(expected, shape, strict=True))
        else ""
    )
    raise ShapeError(f"{name} must have shape ({wanted}), got {shape}.{hint}")
