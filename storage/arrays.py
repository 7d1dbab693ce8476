"""The arrays in the database: name, type, shape and range of each, declared once.

Every query unpacks the arrays with `read_arrays`. The header of a blob is compared with the rules before anything is
unpacked, so that a small blob cannot claim a huge array.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from emtc_core.errors import StorageError
from storage.blobs import MAX_BYTES, PackedArray, list_arrays
from storage.guards import shorten

EMBED_DIM: Final = 4
"""Dimensions of the embedding in a snapshot."""
MAX_SLOTS: Final = 50_000_000
"""Upper bound of `memory.capacity`."""
MAX_TRAJECTORY_BYTES: Final = 256 << 20
"""Maximum size of an unpacked trajectory [bytes]. A long episode of a large environment needs 1 % of it."""

_DTYPE_KINDS: Final = {"float": "f", "integer": "iu", "flag": "biu"}
"""Kind of an array → allowed kinds of its NumPy dtype."""


@dataclass(frozen=True)
class ArrayRule:
    """What one array must contain. A value must be in [low, high]; a flag is 0 or 1."""

    kind: Literal["float", "integer", "flag"]
    shape: tuple[str, ...]
    """One size per dimension: a number, or a letter that is the same number in all arrays of a blob, also as "T+1"."""
    low: float = -math.inf
    high: float = math.inf
    has_nan: bool = False
    """Whether NaN is allowed; it means that there is no value."""
    has_infinity: bool = False
    is_ascending: bool = False
    """Whether each value must be larger than the value before."""
    is_optional: bool = False
    """Whether the array may be missing."""

    def describe(self) -> str:
        """Describe the values for messages, for example "numbers from 0 to 1, or NaN"."""
        if self.kind == "flag":
            return "True or False"
        text = "whole numbers" if self.kind == "integer" else "numbers"
        if self.kind == "float" and not self.has_infinity:
            text = f"finite {text}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            text += f" from {self.low:,.0f} to {self.high:,.0f}"
        elif math.isfinite(self.low):
            text += f" >= {self.low:,.0f}"
        text += " in ascending order" if self.is_ascending else ""
        return f"{text}, or NaN" if self.has_nan else text


Rules = Mapping[str, ArrayRule]
"""Name of an array in a blob → its rule."""

_NODES: Final = ("M",)
_COUNT: Final = ArrayRule("integer", _NODES, low=0)
_FLOAT: Final = ArrayRule("float", _NODES)
_SLOT: Final = ArrayRule("integer", _NODES, low=0, high=MAX_SLOTS - 1, is_ascending=True)

SNAPSHOT_ARRAYS: Final[Mapping[str, Rules]] = {
    "slot": {"slot": _SLOT},
    "embedding": {"embedding": ArrayRule("float", ("M", str(EMBED_DIM)))},
    "H": {"H": _FLOAT},
    "xi": {"xi": ArrayRule("flag", _NODES, low=0, high=1)},
    "n_call": {"n_call": _COUNT},
    "n_xi": {"n_xi": _COUNT},
    "t": {"t": _COUNT},
    "reward": {"reward": _FLOAT},
    "idx_next": {"idx_next": ArrayRule("integer", _NODES, low=-1, high=MAX_SLOTS - 1)},
    "episode": {"episode": _COUNT},
    "delta_mem": {"delta_mem": ArrayRule("float", _NODES, low=0, has_nan=True)},
    "beta": {"beta": ArrayRule("float", _NODES, low=0, high=1, has_nan=True)},
    "state": {
        "state_rows": ArrayRule("integer", ("K",), low=0, high=MAX_SLOTS - 1),
        "state": ArrayRule("float", ("K", "S"), has_infinity=True),  # float16: larger states are stored as infinity
    },
}
"""Column of `snapshots` → its arrays. M: nodes, K: nodes with a stored state, S: state features."""
TRAJECTORY_ARRAYS: Final[Rules] = {
    "reward": ArrayRule("float", ("T",)),
    "state": ArrayRule("float", ("T+1", "S")),
    "action": ArrayRule("integer", ("T", "N"), low=0),
    "slots": ArrayRule("integer", ("T+1",), low=-1, high=MAX_SLOTS - 1, is_optional=True),
}
"""Arrays of the column `trajectory`. T: transitions, S: state features, N: agents."""
LAYOUT_ARRAYS: Final[Rules] = {"coordinates": ArrayRule("float", ("M", "2"), has_nan=True)}
"""Arrays of a projection to a map: two coordinates per node. Those of revisions 1 and 2 can have NaN."""
EMBEDDING_ARRAYS: Final[Rules] = {"coordinates": ArrayRule("float", ("M", "X"))}
"""Arrays of a projection that is the embedding of another embedder: X dimensions per node."""


def read_arrays(blob: bytes, rules: Rules, *, max_bytes: int = MAX_BYTES, **sizes: int) -> dict[str, NDArray[Any]]:
    """Unpack a blob whose arrays must follow rules.

    Source: `storage.blobs`.

    Args:
        blob: A blob made by `blobs.pack`.
        rules: What each array must contain.
        max_bytes: Maximum size of all arrays after unpacking [bytes].
        sizes: Known sizes by the letter of a dimension. The header must have them, so that nothing larger is unpacked.

    Returns:
        The arrays by name, with the shapes of the rules [unit varies].

    Raises:
        StorageError: If an array breaks its rule, or the blob is damaged.
    """
    packed = {array.name: array for array in list_arrays(blob, max_bytes=max_bytes)}
    required = {name for name, rule in rules.items() if not rule.is_optional}
    if not required <= packed.keys() <= rules.keys():
        raise StorageError(
            f"A stored blob must contain the arrays {', '.join(rules)} (got {shorten(', '.join(packed))}).",
            reason="other_arrays",
            subject=", ".join(packed),
        )
    for name, rule in rules.items():
        if name in packed:
            _check_form(packed[name], rule, sizes)
    arrays = {name: array.read() for name, array in packed.items()}
    for name, array in arrays.items():
        _check_values(name, array, rules[name])
    return arrays


def read_array(blob: bytes, rules: Rules, **sizes: int) -> NDArray[Any]:
    """Unpack the only array of a blob, see `read_arrays`.

    Source: `storage.blobs`.

    Args:
        blob: A blob made by `blobs.pack`.
        rules: One rule.
        sizes: As in `read_arrays`.

    Returns:
        The array, with the shape of the rule [unit varies].

    Raises:
        StorageError: If the array breaks its rule, or the blob is damaged.
    """
    (array,) = read_arrays(blob, rules, **sizes).values()
    return array


def _check_form(packed: PackedArray, rule: ArrayRule, sizes: dict[str, int]) -> None:
    """Compare type and shape in a header with a rule. The first array with a letter sets its size in `sizes`."""
    if packed.dtype.kind not in _DTYPE_KINDS[rule.kind]:
        raise _make_error(packed.name, f"contain {rule.describe()}", f"the type {packed.dtype.name}")
    expected: list[int | str] = list(rule.shape)
    if len(packed.shape) == len(rule.shape):
        for i, (name, size) in enumerate(zip(rule.shape, packed.shape, strict=True)):
            letter, _, more = name.partition("+")
            extra = int(more or 0)
            expected[i] = int(letter) if letter.isdigit() else sizes.setdefault(letter, size - extra) + extra
    if expected != list(packed.shape):
        shape, got = (f"[{', '.join(map(str, numbers))}]" for numbers in (expected, packed.shape))
        raise _make_error(packed.name, f"have the shape {shape}", got)


def _check_values(name: str, array: NDArray[Any], rule: ArrayRule) -> None:
    """Compare the values of an array with its rule, by its extremes: a snapshot has millions of values."""
    if not array.size:
        return
    get_low, get_high = (np.fmin, np.fmax) if rule.has_nan else (np.minimum, np.maximum)  # the first two ignore NaN
    for value in (get_low.reduce(array, axis=None), get_high.reduce(array, axis=None)):
        is_missing = rule.has_nan and np.isnan(value)
        is_outside = not rule.low <= value <= rule.high or (np.isinf(value) and not rule.has_infinity)
        if is_outside and not is_missing:
            raise _make_error(name, f"contain {rule.describe()}", str(value))
    if rule.is_ascending and (array[1:] <= array[:-1]).any():
        raise _make_error(name, f"contain {rule.describe()}", "another order")


def _make_error(name: str, rule: str, got: str) -> StorageError:
    return StorageError(f"The stored array {name} must {rule} (got {got}).", reason="damaged", subject=name)
