"""The update of the value learner on a GPU as CUDA graphs, one for each padded length of a batch.

An update has about 290 operations, and the host needs more time to launch them than the GPU to compute them. A graph is
launched as a whole, but it repeats its operations at fixed addresses and with fixed shapes. So a batch is copied to
fixed tensors, and its length is rounded up to one of few lengths. `RepeatedStep` records the graphs.

The first updates are launched operation by operation. Then the graphs of all lengths are captured, because a capture in
the middle of a training would take more time. Before its capture, each length is launched once. What this changes is
restored.

The host sends all values of a batch that it has, and the rows of the steps in the replay buffer, as one block. The GPU
gathers the steps into the fixed tensors. The padding gets rows of padding and zeros, never values of an earlier batch:
a sum of an update multiplies the padding by 0, and 0 times infinity is not 0.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from emtc_core.learner.targets import IncentiveInputs, LearnerStats
from emtc_core.packing import PackedLayout, make_host_block
from emtc_core.repeated_step import WARM_UP, RepeatedStep
from emtc_core.replay_buffer.buffer import Batch, BatchSteps

LENGTH_STEP = 32
"""Batches are padded to multiples of this length [env steps]: few graphs, and little padding."""
MAX_GRAPHS = 16
"""If a game has more lengths than this, later lengths are farther apart."""
FIRST_CAPACITY = 512
"""The fixed tensors have at most this length [env steps] until a batch is longer."""

VALUES = {"reward": torch.float32, "terminated": torch.bool, "filled": torch.bool, "beta": torch.float32}
"""Fields of a batch that the host sends."""
RECALLED_VALUES = {"h_next": torch.float32, "rho_next": torch.float32, "hit": torch.bool}
"""Fields of the recalled values."""

_LOG = logging.getLogger(__name__)

Update = Callable[[Batch, IncentiveInputs | None], LearnerStats]


class CapturedUpdates:
    """Runs an update with the same arguments and results, as CUDA graphs."""

    def __init__(
        self,
        update: Update,
        parameters: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        *,
        episode_limit: int,
    ) -> None:
        """Prepare the updates. The first update allocates the fixed tensors.

        Args:
            update: The update of the learner; see `repeated_step` for its requirements.
            parameters: The parameters that it trains.
            optimizer: Their optimizer. An update changes nothing but its state, the parameters and their gradients.
            episode_limit: Maximum length of a batch [env steps].
        """
        self._update, self._parameters, self._optimizer = update, parameters, optimizer
        self._lengths = list_lengths(episode_limit)
        self._inputs: _FixedInputs | None = None
        self._steps: dict[int, _CapturedStep] = {}  # by padded length
        self._warm_ups_left, self._is_captured = WARM_UP, False

    def run(self, batch: Batch, recalled: IncentiveInputs | None) -> LearnerStats:
        """Make one update.

        Args:
            batch: Padded episodes.
            recalled: Values recalled from the memory; None without a memory.
        """
        length = next(x for x in self._lengths if x >= batch.ends.shape[1])
        if self._inputs is None or not self._inputs.can_load(batch, recalled, length):
            self._steps.clear()
            self._is_captured = False
            capacity = FIRST_CAPACITY if self._inputs is None else 2 * self._inputs.capacity
            self._inputs = _FixedInputs(batch, recalled, min(max(capacity, length), self._lengths[-1]))
        if self._warm_ups_left:
            self._warm_ups_left -= 1
        elif not self._is_captured:
            self._capture_all(self._inputs, batch, recalled)
        self._inputs.load(batch, recalled, length)
        return self._get_step(self._inputs, batch, length).run()

    def discard_graphs(self) -> None:
        """Record the graphs again, because tensors of the optimizer's state were replaced."""
        self._steps.clear()
        self._warm_ups_left, self._is_captured = WARM_UP, False

    def _capture_all(self, inputs: "_FixedInputs", batch: Batch, recalled: IncentiveInputs | None) -> None:
        """Capture the updates of all lengths that fit the inputs, without a change of parameters and optimizer."""
        started_s, n_graphs = time.perf_counter(), 0
        tensors = [parameter.detach() for parameter in self._parameters]
        tensors += [x for state in self._optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        saved = [x.clone() for x in tensors]
        for length in (x for x in self._lengths if x <= inputs.capacity):
            inputs.load(batch, recalled, length)
            if not self._get_step(inputs, batch, length).capture_now():
                break
            n_graphs += 1
        torch._foreach_copy_(tensors, saved)  # pyright: ignore[reportPrivateImportUsage]
        self._is_captured = True
        _LOG.info("Captured %d CUDA graphs of the update in %.1f s.", n_graphs, time.perf_counter() - started_s)

    def _get_step(self, inputs: "_FixedInputs", batch: Batch, length: int) -> "_CapturedStep":
        if length not in self._steps:
            shared = next(iter(self._steps.values()), None)
            self._steps[length] = _CapturedStep(self._update, *inputs.select(batch, length), self._parameters, shared)
        return self._steps[length]


def list_lengths(episode_limit: int) -> list[int]:
    """List the lengths to which batches are padded: at most `MAX_GRAPHS`, if the limit is below a million env steps.

    They are multiples of `LENGTH_STEP`. In a long game, they also grow by a fraction of the length before.

    Args:
        episode_limit: Maximum length of a batch [env steps].
    """
    lengths: list[int] = []
    for growth in (0.0, 0.25, 0.5, 1.0):
        lengths = [LENGTH_STEP]
        while lengths[-1] < episode_limit:
            n_steps = max(1, int(growth * lengths[-1]) // LENGTH_STEP)
            lengths.append(lengths[-1] + n_steps * LENGTH_STEP)
        if len(lengths) <= MAX_GRAPHS:
            break
    return [*lengths[:-1], episode_limit]


class _FixedInputs:
    """The memory that the graphs read: the steps of a batch, and the values that the host sends with it.

    The values of a shorter batch are in the first part of the memory, one array after another.
    """

    def __init__(self, batch: Batch, recalled: IncentiveInputs | None, capacity: int) -> None:
        """Allocate the memory on the device of the batches.

        Args:
            batch: A batch; those that are loaded have as many episodes.
            recalled: Values recalled from the memory; those that are loaded must be None, too, if this is.
            capacity: Maximum length of a batch [env steps].
        """
        self.capacity = capacity
        self._n_batch, self._is_recalled = len(batch.length), recalled is not None
        self._device = batch.steps.storage.device
        self._steps = batch.steps.storage.make_empty_block((capacity + 1) * self._n_batch)
        self._values = torch.zeros(self._make_layout(capacity).size_bytes, dtype=torch.uint8, device=self._device)

    def can_load(self, batch: Batch, recalled: IncentiveInputs | None, length: int) -> bool:
        """Whether a batch has the number of episodes of these tensors, recalled values if these have them, and fits."""
        same_fields = self._is_recalled == (recalled is not None)
        return same_fields and self._n_batch == len(batch.length) and length <= self.capacity

    def load(self, batch: Batch, recalled: IncentiveInputs | None, length: int) -> None:
        """Copy the first `length` transitions of a batch, and add padding from its end to `length`."""
        layout, n_steps = self._make_layout(length), min(length, batch.ends.shape[1])
        block = make_host_block(layout.size_bytes, self._device)
        values = layout.split(block)
        rows = values["rows"]  # the other rows are 0, a row of padding
        rows[: n_steps + 1] = torch.from_numpy(batch.steps.rows[: n_steps + 1])
        values["terminated"].fill_(True)
        for name, source in _list_values(batch, recalled).items():
            values[name][:n_steps] = source.T[:n_steps]
        self._values[: layout.size_bytes].copy_(block, non_blocking=True)
        rows_on_device = layout.split(self._values)["rows"]
        steps = self._steps[: rows.numel()]
        batch.steps.storage.gather_into(steps, rows.view(-1), rows_on_device.view(-1))

    def select(self, batch: Batch, length: int) -> tuple[Batch, IncentiveInputs | None]:
        """Return views of the first `length` transitions, with the host's arrays of `batch`, which no graph reads."""
        values = {name: x.T for name, x in self._make_layout(length).split(self._values).items()}
        storage = batch.steps.storage
        tensors = storage.split_steps(self._steps[: (length + 1) * self._n_batch], self._n_batch)
        steps = BatchSteps(storage, batch.steps.rows, tensors)
        batch = replace(batch, steps=steps, **{name: values[name] for name in VALUES})
        recalled = IncentiveInputs(**{name: values[name] for name in RECALLED_VALUES}) if self._is_recalled else None
        return batch, recalled

    def _make_layout(self, length: int) -> PackedLayout:
        """Place the rows of all steps and the values of the host, time-major."""
        dtypes = VALUES | (RECALLED_VALUES if self._is_recalled else {})
        arrays = {name: ((length, self._n_batch), dtype) for name, dtype in dtypes.items()}
        return PackedLayout({"rows": ((length + 1, self._n_batch), torch.int64)} | arrays)


class _CapturedStep:
    """The update of one padded length."""

    def __init__(
        self,
        update: Update,
        batch: Batch,
        recalled: IncentiveInputs | None,
        parameters: list[nn.Parameter],
        shared: "_CapturedStep | None",
    ) -> None:
        self._update, self._batch, self._recalled, self._parameters = update, batch, recalled, parameters
        repeated = None if shared is None else shared._repeated
        self._repeated = RepeatedStep(self._step, batch.reward.device, name="update of the learner", shared=repeated)

    def run(self) -> LearnerStats:
        """Make one update with the present values of the fixed tensors. The next one overwrites its results."""
        self._repeated.run(1)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient  # each graph has its own
        return self._stats

    def capture_now(self) -> bool:
        """Make one update and capture it, see `RepeatedStep.capture_now`."""
        return self._repeated.capture_now()

    def _step(self) -> None:
        self._stats = self._update(self._batch, self._recalled)
        self._gradients = [parameter.grad for parameter in self._parameters]


def _list_values(batch: Batch, recalled: IncentiveInputs | None) -> dict[str, Tensor]:
    """List the tensors [B, T] of a batch and of the recalled values that are on the host, by field."""
    return {name: getattr(batch, name) for name in VALUES} | ({} if recalled is None else vars(recalled))
