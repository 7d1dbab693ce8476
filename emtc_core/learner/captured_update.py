"""The update of the value learner on a GPU as CUDA graphs, one for each padded length of a batch.

An update has about 290 operations, and the host needs more time to launch them than the GPU to compute them. A graph is
launched as a whole, but it repeats its operations at fixed addresses and with fixed shapes. So a batch is copied to
fixed tensors, and its length is rounded up to a multiple of `LENGTH_STEP`. `RepeatedStep` records the graphs.

In the padding only `filled` is set, to False. The other fields keep the values of an earlier batch there, because every
sum of an update multiplies the padding by 0.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from emtc_core.learner.targets import IncentiveInputs, LearnerStats
from emtc_core.repeated_step import RepeatedStep
from emtc_core.replay_buffer.buffer import Batch

LENGTH_STEP = 32
"""Batches are padded to multiples of this length [env steps]: few graphs, and little padding."""
STATE_FIELDS = ("obs", "state", "avail")
"""Fields of a batch with T + 1 steps."""
TRANSITION_FIELDS = ("action", "reward", "terminated", "filled", "beta")
"""Fields of a batch with T steps."""

Update = Callable[[Batch, IncentiveInputs | None], LearnerStats]


class CapturedUpdates:
    """Runs an update with the same arguments and results, as CUDA graphs."""

    def __init__(self, update: Update, parameters: list[nn.Parameter], *, episode_limit: int) -> None:
        """Prepare the updates. The first update allocates the fixed tensors.

        Args:
            update: The update of the learner; see `repeated_step` for its requirements.
            parameters: The parameters that it trains.
            episode_limit: Maximum length of a batch [env steps].
        """
        self._update, self._parameters, self._limit = update, parameters, episode_limit
        self._inputs: _FixedInputs | None = None
        self._steps: dict[int, _CapturedStep] = {}  # by padded length

    def run(self, batch: Batch, recalled: IncentiveInputs | None) -> LearnerStats:
        """Make one update.

        Args:
            batch: Padded episodes.
            recalled: Values recalled from the memory; None without a memory.
        """
        if self._inputs is None or not self._inputs.can_load(batch, recalled):
            self._steps.clear()
            self._inputs = _FixedInputs(batch, recalled, self._limit)
        length = min(-(-batch.ends.shape[1] // LENGTH_STEP) * LENGTH_STEP, self._limit)
        self._inputs.load(batch, recalled, length)
        if length not in self._steps:
            inputs = self._inputs.select(batch, length)
            shared = next(iter(self._steps.values()), None)
            self._steps[length] = _CapturedStep(self._update, *inputs, self._parameters, shared)
        return self._steps[length].run()

    def discard_graphs(self) -> None:
        """Record the graphs again, because tensors of the optimizer's state were replaced."""
        self._steps.clear()


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
        """Copy a batch, and mark the steps from its end to `length` as padding."""
        sources = _list_tensors(batch, recalled)
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

    def _step(self) -> None:
        self._stats = self._update(self._batch, self._recalled)
        self._gradients = [parameter.grad for parameter in self._parameters]


def _list_tensors(batch: Batch, recalled: IncentiveInputs | None) -> dict[str, Tensor]:
    """List the tensors of a batch and of the recalled values by field, time-major."""
    fields = {name: getattr(batch, name) for name in (*STATE_FIELDS, *TRANSITION_FIELDS)}
    return {name: x.transpose(0, 1) for name, x in (fields | ({} if recalled is None else vars(recalled))).items()}
