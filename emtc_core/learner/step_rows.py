"""The rows of sequences of different lengths, step by step and without padding.

The rows of step 0 come first, then those of step 1, and so on. In each step, the rows have the order of the sequences,
and a sequence that has ended has no row. So the rows after the first step are the successors of all rows that have one,
in the same order.

If all sequences have the same length, the rows are those of a padded array, and nothing is copied. A GPU uses this
layout for all batches, because a CUDA graph needs fixed shapes.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

N_PARTS = 2
"""Number of parts of a batch that are computed in parallel if the run has several threads. It does not depend on the
number of threads, because another number of parts would change the order of the sums."""
MIN_PART_SEQUENCES = 16
"""Minimum number of sequences of a part."""


@dataclass(frozen=True)
class Part:
    """The rows of some sequences in another order: in each step, the longest sequence first.

    Source: implementation detail.
    """

    rows: NDArray[np.int64]  # [R] indices of the rows
    step_offsets: NDArray[np.int64]  # [T + 1] index in `rows` of the first row of each step, then R
    n_sequences: int


class StepRows:
    """The layout of the rows of B sequences with up to T steps: R rows in all."""

    def __init__(self, lengths: NDArray[np.int64], n_steps: int) -> None:
        """Set the layout.

        Args:
            lengths: [B], length of each sequence [steps].
            n_steps: T, length of padded arrays [steps].
        """
        self.lengths, self.n_sequences, self.n_steps = lengths, len(lengths), n_steps
        self.is_padded = bool((lengths == n_steps).all())

    @cached_property
    def transitions(self) -> "StepRows":
        """The layout of sequences with one step less: the rows that have a successor, or the successors.

        Source: implementation detail.
        """
        return StepRows(self.lengths - 1, self.n_steps - 1)

    def repeat(self, n_copies: int) -> "StepRows":
        """Return the layout of `n_copies` sequences in place of each one."""
        return StepRows(np.repeat(self.lengths, n_copies), self.n_steps)

    def pack(self, padded: Tensor) -> Tensor:
        """Select the rows of a padded tensor.

        Source: implementation detail.

        Args:
            padded: [T, B, ...] [unit varies].

        Returns:
            [R, ...] [unit varies].
        """
        flat = padded.flatten(0, 1)
        return flat if self.is_padded else flat.index_select(0, self._padded_indices)

    def unpack(self, rows: Tensor) -> Tensor:
        """Make a padded tensor of rows.

        Source: implementation detail.

        Args:
            rows: [R, ...] [unit varies].

        Returns:
            [T, B, ...], 0 in the padding [unit varies].
        """
        shape = (self.n_steps, self.n_sequences)
        if self.is_padded:
            return rows.unflatten(0, shape)
        zeros = rows.new_zeros(self.n_steps * self.n_sequences, *rows.shape[1:])
        return zeros.index_copy(0, self._padded_indices, rows).unflatten(0, shape)

    def select_before(self, rows: Tensor) -> Tensor:
        """Select the rows [R - B, ...] that have a successor.

        Source: implementation detail.

        Args:
            rows: [R, ...] [unit varies].
        """
        if self.is_padded:
            return rows[: len(rows) - self.n_sequences]
        return rows.index_select(0, self._indices_before)

    def select_after(self, rows: Tensor) -> Tensor:
        """Select the successors [R - B, ...] of `select_before`.

        Source: implementation detail.

        Args:
            rows: [R, ...] [unit varies].
        """
        return rows[self.n_sequences :]

    def list_sequences(self) -> list[NDArray[np.int64]]:
        """List the indices of the rows of each sequence.

        Source: implementation detail.

        Returns:
            One array [T_b] per sequence.
        """
        order = np.argsort(self._sequences, kind="stable")
        return np.split(order, self.lengths.cumsum()[:-1])

    def select_sequences(self, is_selected: NDArray[np.bool_]) -> tuple[Tensor, "StepRows"]:
        """Return the indices of the rows of some sequences, and the layout of these rows.

        Source: implementation detail.

        Args:
            is_selected: [B] boolean.
        """
        indices = is_selected[self._sequences].nonzero()[0]
        return torch.from_numpy(indices), StepRows(self.lengths[is_selected], self.n_steps)

    @cached_property
    def parts(self) -> list[Part]:
        """Parts with about the same number of rows; one part if there are few sequences.

        Source: implementation detail.
        """
        order = np.argsort(-self.lengths, kind="stable")
        n_parts = N_PARTS if len(order) >= N_PARTS * MIN_PART_SEQUENCES else 1
        # The first part has the long sequences. So the other has few steps, and each step is one more product.
        n_rows = self.lengths[order].cumsum()
        first = np.searchsorted(n_rows, np.arange(1, n_parts) * n_rows[-1] / n_parts)
        positions_TB = self._is_row.ravel().cumsum().reshape(self._is_row.shape) - 1
        return [self._make_part(sequences, positions_TB) for sequences in np.split(order, first)]

    def _make_part(self, sequences: NDArray[np.int64], positions: NDArray[np.int64]) -> Part:
        """Make the part of some sequences, longest first, from the positions [T, B] of all rows."""
        is_row = self._is_row[:, sequences]
        rows = positions[:, sequences][is_row]
        n_active = is_row[: self.lengths[sequences[0]]].sum(1)
        return Part(rows, np.append(0, n_active.cumsum()), len(sequences))

    @cached_property
    def _is_row(self) -> NDArray[np.bool_]:
        """Whether the padded array [T, B] has a row there, not padding."""
        return np.arange(self.n_steps)[:, None] < self.lengths

    @cached_property
    def _sequences(self) -> NDArray[np.int64]:
        """Index [R] of the sequence of each row."""
        return self._is_row.nonzero()[1]

    @cached_property
    def _padded_indices(self) -> Tensor:
        """Flat indices [R] of the rows in the padded array."""
        return torch.from_numpy(self._is_row.ravel().nonzero()[0])

    @cached_property
    def _indices_before(self) -> Tensor:
        """Indices [R - B] of the rows that have a successor."""
        has_successor = np.arange(1, self.n_steps + 1)[:, None] < self.lengths
        return torch.from_numpy(has_successor[self._is_row].nonzero()[0])
