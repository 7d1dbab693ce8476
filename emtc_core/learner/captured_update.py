"""The update of the value learner on a GPU as CUDA graphs, one for each padded length of a batch.

An update has about 290 operations, and the host needs more time to launch them than the GPU to compute them. A graph is
launched as a whole, but it repeats its operations at fixed addresses and with fixed shapes. So a batch is copied to
fixed tensors, and its length is rounded up to a multiple of `LENGTH_STEP`. `RepeatedStep` records the graphs.

The first updates are launched operation by operation. Then the graphs of all lengths are captured, because a capture in
the middle of a training would take more time. Before its capture, each length is launched once. What this changes is
restored.

In the padding only `filled` is set, to False. The other fields keep the values of an earlier batch there, because every
sum of an update multiplies the padding by 0.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from emtc_core.learner.targets import IncentiveInputs, LearnerStats
from emtc_core.repeated_step import WARM_UP, RepeatedStep
from emtc_core.replay_buffer.buffer import Batch

LENGTH_STEP = 32
"""Batches are padded to multiples of this length [env steps]: few graphs, and little padding."""
STATE_FIELDS = ("obs", "state", "avail")
"""Fields of a batch with T + 1 steps."""
TRANSITION_FIELDS = ("action", "reward", "terminated", "filled", "beta")
"""Fields of a batch with T steps."""

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
        self._limit = episode_limit
        self._inputs: _FixedInputs | None = None
        self._steps: dict[int, _CapturedStep] = {}  # by padded length
        self._warm_ups_left, self._is_captured = WARM_UP, False

    def run(self, batch: Batch, recalled: IncentiveInputs | None) -> LearnerStats:
        """Make one update.

        Args:
            batch: Padded episodes.
            recalled: Values recalled from the memory; None without a memory.
        """
        length = _round_up(batch.ends.shape[1], self._limit)
        if self._inputs is None or not self._inputs.can_load(batch, recalled):
            self._steps.clear()
            self._is_captured = False
            self._inputs = _FixedInputs(batch, recalled, self._limit)
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
        """Capture the updates of all lengths, without a change of parameters and optimizer."""
        started_s, n_graphs = time.perf_counter(), 0
        tensors = [parameter.detach() for parameter in self._parameters]
        tensors += [x for state in self._optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        saved = [x.clone() for x in tensors]
        lengths = [_round_up(first, self._limit) for first in range(1, self._limit + 1, LENGTH_STEP)]
        for length in lengths:
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


def _round_up(length: int, limit: int) -> int:
    """Return the padded length of a batch."""
    return min(-(-length // LENGTH_STEP) * LENGTH_STEP, limit)


class _FixedInputs:
    """The tensors that the graphs read: a batch and recalled values for the maximum length, time-major."""

    def __init__(self, batch: Batch, recalled: IncentiveInputs | None, episode_limit: int) -> None:
        n_missing = episode_limit - batch.ends.shape[1]
        sources = _list_tensors(batch, recalled)
        self._tensors = {name: x.new_zeros(len(x) + n_missing, *x.shape[1:]) for name, x in sources.items()}
        self._tensors["avail"].fill_(True)  # a state has at least one available action

    def can_load(self, batch: Batch, recalled: IncentiveInputs | None) -> bool:
        """Whether a batch has the number of episodes of these tensors, and recalled values if these have them."""
        same_episodes = self._tensors["filled"].shape[1] == len(batch.length)
        return same_episodes and ("hit" in self._tensors) == (recalled is not None)

    def load(self, batch: Batch, recalled: IncentiveInputs | None, length: int) -> None:
        """Copy the first `length` transitions of a batch, and mark the steps from its end to `length` as padding."""
        sources = {name: x[: length + (name in STATE_FIELDS)] for name, x in _list_tensors(batch, recalled).items()}
        targets = [self._tensors[name][: len(x)] for name, x in sources.items()]
        torch._foreach_copy_(targets, list(sources.values()))  # pyright: ignore[reportPrivateImportUsage]
        self._tensors["filled"][batch.ends.shape[1] : length].zero_()

    def select(self, batch: Batch, length: int) -> tuple[Batch, IncentiveInputs | None]:
        """Return views of the first `length` transitions, with the host's arrays of `batch`, which no graph reads."""
        views = {name: x[:length].transpose(0, 1) for name, x in self._tensors.items()}
        views |= {name: self._tensors[name][: length + 1].transpose(0, 1) for name in STATE_FIELDS}
        fields = {name: views[name] for name in (*STATE_FIELDS, *TRANSITION_FIELDS)}
        recalled = {name: x for name, x in views.items() if name not in fields}
        return replace(batch, **fields), IncentiveInputs(**recalled) if recalled else None


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


def _list_tensors(batch: Batch, recalled: IncentiveInputs | None) -> dict[str, Tensor]:
    """List the tensors of a batch and of the recalled values by field, time-major."""
    fields = {name: getattr(batch, name) for name in (*STATE_FIELDS, *TRANSITION_FIELDS)}
    return {name: x.transpose(0, 1) for name, x in (fields | ({} if recalled is None else vars(recalled))).items()}
