"""Replay buffer of whole episodes of different lengths, sampled as padded batches with a mask.

This module maps episodes to rows, samples uniformly or by priority, and makes the padded batch. The module `rows`
stores the rows. Values that change after an episode was stored (H, counts) are read from the episodic memory by
`slots`. Stage before: collector, memory and gate; after: learner.

An episode of T transitions uses T + 1 rows in pages of `PAGE_ROWS` rows. The pages are freed when the episode is
replaced. Page 0 is the padding: zero everywhere, action 0 available, beta 1.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.arrays import check_shape
from emtc_core.devices import AsyncCopy
from emtc_core.envs.base import EnvInfo
from emtc_core.packing import send_together
from emtc_core.replay_buffer.priorities import Priorities
from emtc_core.replay_buffer.rows import ReplayRows, StepTensors
from emtc_core.replay_buffer.sizes import PAGE_ROWS, count_episode_pages, count_max_pages
from emtc_core.rollout.episode import Episode

MIN_NEW_PAGES = 64
StateDict = dict[str, Any]  # tensors, numbers and further dictionaries of them
Slots = NDArray[np.int64]


@dataclass(frozen=True)
class StoredEpisode:
    """Data of one stored episode that are needed to write it to the episodic memory again.

    Source: the input of Algorithm 2.
    """

    index: int  # index in the buffer
    number: int  # number of the episode in its run
    state: NDArray[np.float32]  # [T+1, S] [state features]
    reward: NDArray[np.float32]  # [T] [reward], in the learner's unit
    won: bool
    episode_return: float  # environment's unit


class BatchSteps:
    """The steps of a batch in the replay buffer. Their tensors are gathered when the first one is read."""

    def __init__(self, storage: ReplayRows, rows: NDArray[np.int64], tensors: StepTensors | None = None) -> None:
        """Refer to the steps.

        Args:
            storage: The rows of the buffer.
            rows: [T+1, B], row of each step; 0 is a row of padding.
            tensors: The tensors, if they exist already.
        """
        self.storage, self.rows, self._tensors = storage, rows, tensors

    @property
    def tensors(self) -> StepTensors:
        """The fields that the networks read."""
        if self._tensors is None:
            self._tensors = self.storage.gather(self.rows)
        return self._tensors

    def read_states(self, episodes: NDArray[np.integer], steps: NDArray[np.integer]) -> NDArray[np.float32]:
        """Read states from the host.

        Source: implementation detail.

        Args:
            episodes: [K], indices of episodes in the batch.
            steps: [K], time steps of these episodes [steps].

        Returns:
            [K, S] [state features].
        """
        return self.storage.read_states(self.rows[steps, episodes])


@dataclass(frozen=True)
class Batch:
    """B episodes padded to T transitions, the length of the longest. `filled` is False on padding.

    A buffer returns tensors of the host, and steps that are gathered on the device when they are read. Steps, reward
    and beta are views of time-major tensors, so that unrolling over time needs no copy.

    Source: the mini-batch of Algorithm 3.
    """

    steps: BatchSteps  # obs, state, avail and action
    reward: Tensor  # [B, T] [reward], in the learner's unit
    terminated: Tensor  # [B, T] boolean; True where the target does not bootstrap, and in the padding
    filled: Tensor  # [B, T] boolean; True on real transitions
    beta: Tensor  # [B, T] gate stored with the transition, dimensionless; 1 without a gate
    indices: NDArray[np.int64]  # [B] indices in the buffer, for set_slots and set_priorities
    slots: Slots  # [B, T+1] slot indices of the states; -1 for padding or if not stored
    uids: Slots  # [B, T+1] uids of the nodes in the slots when they were looked up, dimensionless
    generation: NDArray[np.int64]  # [B] generation of the memory when the slots were looked up, dimensionless
    ends: NDArray[np.bool_]  # [B, T] boolean, `terminated` as an array
    length: NDArray[np.int64]  # [B] real transitions [steps]
    number: NDArray[np.int64]  # [B] number of the episode in its run, dimensionless

    @property
    def obs(self) -> Tensor:
        """[B, T+1, N, O] [observation features]. Source: the mini-batch of Algorithm 3."""
        return self.steps.tensors.obs

    @property
    def state(self) -> Tensor:
        """[B, T+1, S] [state features]. Source: the mini-batch of Algorithm 3."""
        return self.steps.tensors.state

    @property
    def avail(self) -> Tensor:
        """[B, T+1, N, A] boolean; in the padding only action 0 is available. Source: the mini-batch of Algorithm 3."""
        return self.steps.tensors.avail

    @property
    def action(self) -> Tensor:
        """[B, T, N] action indices, int64. Source: the mini-batch of Algorithm 3."""
        return self.steps.tensors.action

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with the tensors of the host on a device, that of its steps."""
        if device.type == "cpu":
            return self
        time_major = {name: getattr(self, name).T for name in ("reward", "terminated", "filled", "beta")}
        return replace(self, **{name: x.T for name, x in send_together(time_major, device).items()})


class ReplayBuffer:
    """The newest `capacity` episodes."""

    def __init__(
        self,
        capacity: int,
        info: EnvInfo,
        *,
        bootstrap_on_timeout: bool = False,
        priority_alpha: float | None = None,
        device: torch.device | str = "cpu",
        storage_device: torch.device | str | None = None,
        max_steps: int | None = None,
    ) -> None:
        """Make an empty buffer.

        Args:
            capacity: Maximum number of episodes, >= 1.
            info: Sizes of one step.
            bootstrap_on_timeout: Whether the TD target bootstraps after an episode that the time limit ended.
            priority_alpha: Exponent of episode priorities; None samples uniformly.
            device: Device of the batches.
            storage_device: Device of the rows; None is `device`.
            max_steps: Env steps for which memory is allocated; None: no limit below the capacity.
        """
        self._info, self._capacity, self._device = info, capacity, torch.device(device)
        self._bootstrap_on_timeout, self._alpha = bootstrap_on_timeout, priority_alpha
        max_pages = count_episode_pages(info)
        self._pages = np.zeros((capacity, max_pages), np.int64)
        self._length = np.zeros(capacity, np.int64)
        self._ends = np.zeros(capacity, np.bool_)
        self._generation = np.zeros(capacity, np.int64)
        self._priorities = Priorities(capacity, lag=int(self._device.type == "cuda"))
        self._number = np.zeros(capacity, np.int64)
        self._won = np.zeros(capacity, np.bool_)
        self._return = np.zeros(capacity)
        self._size = self._next = 0
        self._free: list[int] = []
        pages = 1 + count_max_pages(capacity, info, max_steps)
        self._rows = ReplayRows(
            info, pages * PAGE_ROWS, storage_device=torch.device(storage_device or device), device=self._device
        )
        self._rows.write(np.arange(PAGE_ROWS), _padding(info))
        self._slots = np.full((PAGE_ROWS, 2), -1, np.int64)

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        episode: Episode,
        *,
        slots: Slots | None = None,
        uids: Slots | None = None,
        generation: int = 0,
        beta: NDArray[np.floating] | None = None,
        number: int = 0,
    ) -> int:
        """Store one episode (Algorithm 3). A full buffer drops its oldest episode.

        Args:
            episode: The finished episode.
            slots: [T+1], slot indices of its states; -1 if not stored.
            uids: [T+1], uids of the nodes in these slots, dimensionless.
            generation: Generation of the memory when the slots were looked up.
            beta: [T], gate of its transitions, dimensionless; None is 1.
            number: The episode's number in its run.

        Returns:
            The episode's index in the buffer.

        Raises:
            ValueError: If the episode is empty or longer than the limit.
            ShapeError: If the shape of an array does not match `info`.
        """
        self._check_shapes(episode)
        index = self._next
        self._free_pages(index)
        self._length[index] = episode.length
        self._ends[index] = episode.terminated or (episode.truncated and not self._bootstrap_on_timeout)
        self._priorities.reset(index)
        self._number[index], self._won[index], self._return[index] = number, episode.won, episode.episode_return
        self._assign_pages(index)
        self._write(index, episode, beta)
        self._next, self._size = (index + 1) % self._capacity, max(self._size, index + 1)
        missing = np.full(episode.length + 1, -1, np.int64)
        slots, uids = (missing if slots is None else slots), (missing if uids is None else uids)
        self.set_slots(np.array([index]), slots[None], uids[None], generation)
        return index

    def sample(self, batch: int, rng: np.random.Generator) -> Batch:
        """Draw `batch` different episodes, uniformly or by priority.

        Raises:
            ValueError: If the buffer has fewer episodes.
        """
        if self._size < batch:
            raise ValueError(f"The replay buffer must have {batch} episodes before sampling, it has {self._size}.")
        if self._alpha is None:
            return self.take(rng.choice(self._size, batch, replace=False))
        return self.take(self._priorities.draw(batch, self._size, self._alpha, rng))

    def take(self, indices: NDArray[np.integer]) -> Batch:
        """Return stored episodes as one padded batch (Algorithm 3).

        Args:
            indices: [B], indices in the buffer.
        """
        indices = np.asarray(indices, np.int64)
        length = self._length[indices]
        longest = int(length.max())
        rows_TB = self._row_index(indices, longest)
        steps = np.arange(longest)
        inside_BT = steps < length[:, None]
        ends_BT = ~inside_BT | ((steps == length[:, None] - 1) & self._ends[indices, None])
        reward_TB, beta_TB = self._rows.read_transitions(rows_TB[:-1])
        slots_TB2 = self._slots[rows_TB]
        return Batch(
            steps=BatchSteps(self._rows, rows_TB),
            reward=torch.from_numpy(reward_TB).T,
            terminated=torch.from_numpy(ends_BT),
            filled=torch.from_numpy(inside_BT),
            beta=torch.from_numpy(beta_TB).T,
            indices=indices,
            slots=np.ascontiguousarray(slots_TB2[..., 0].T),
            uids=np.ascontiguousarray(slots_TB2[..., 1].T),
            generation=self._generation[indices],
            ends=ends_BT,
            length=length,
            number=self._number[indices],
        )

    def read(self, index: int) -> StoredEpisode:
        """Read one episode without padding."""
        rows = self._episode_rows(index)
        return StoredEpisode(
            index=index,
            number=int(self._number[index]),
            state=self._rows.read_states(rows),
            reward=self._rows.read_transitions(rows[:-1])[0],
            won=bool(self._won[index]),
            episode_return=float(self._return[index]),
        )

    def set_slots(self, indices: NDArray[np.integer], slots: Slots, uids: Slots, generation: int) -> None:
        """Replace the slots of episodes after a re-projection.

        Source: implementation detail.

        Args:
            indices: [K], indices in the buffer.
            slots: [K, T+1], slot indices, where T is at least the length of the longest episode. Values after the end
                of an episode are ignored.
            uids: [K, T+1], uids of the nodes in these slots, dimensionless.
            generation: Generation of the memory when the slots were looked up.
        """
        indices = np.asarray(indices, np.int64)
        check_shape("uids", uids, slots.shape)
        rows_TK = self._row_index(indices, slots.shape[1] - 1)
        real = np.arange(slots.shape[1])[:, None] <= self._length[indices]
        self._slots[rows_TK[real]] = np.stack([slots.T[real], uids.T[real]], axis=1)
        self._generation[indices] = generation

    def set_priorities(self, indices: NDArray[np.integer], priorities: AsyncCopy) -> None:
        """Set the sampling priorities of episodes; a new episode has 1.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.

        Args:
            indices: [K], indices in the buffer.
            priorities: [K], > 0 [return²], mean squared TD errors.
        """
        self._priorities.set(indices, priorities)

    def get_state(self) -> StateDict:
        """Return the state as tensors and numbers. Rows are in buffer order, without padding."""
        size = self._size
        rows = self._list_rows()
        return {
            "rows": self._rows.take(rows),
            "slots": torch.from_numpy(self._slots[rows]),
            "length": torch.from_numpy(self._length[:size].copy()),
            "ends": torch.from_numpy(self._ends[:size].copy()),
            "generation": torch.from_numpy(self._generation[:size].copy()),
            "number": torch.from_numpy(self._number[:size].copy()),
            "won": torch.from_numpy(self._won[:size].copy()),
            "return": torch.from_numpy(self._return[:size].copy()),
            "next": self._next,
        } | self._priorities.get_state(size)

    def set_state(self, state: StateDict) -> None:
        """Restore the result of `get_state`. Later samples equal those of the saved buffer."""
        for index in range(self._size):
            self._free_pages(index)
        names = ("length", "ends", "generation", "number", "won", "return")
        columns = {name: state[name].numpy() for name in names}
        self._size = len(columns["length"])
        self._length[: self._size], self._ends[: self._size] = columns["length"], columns["ends"]
        self._generation[: self._size] = columns["generation"]
        self._priorities.set_state(state)
        self._number[: self._size], self._won[: self._size] = columns["number"], columns["won"]
        self._return[: self._size] = columns["return"]
        for index in range(self._size):
            self._assign_pages(index)
        rows = self._list_rows()
        self._rows.put(rows, state["rows"])
        self._slots[rows] = state["slots"].numpy()
        self._next = state["next"]

    def _check_shapes(self, episode: Episode) -> None:
        info, steps = self._info, episode.length
        if not 1 <= steps <= info.episode_limit:
            raise ValueError(f"An episode must have 1 to {info.episode_limit} transitions, got {steps}.")
        check_shape("obs", episode.obs, (steps + 1, info.n_agents, info.obs_dim))
        check_shape("state", episode.state, (steps + 1, info.state_dim))
        check_shape("avail", episode.avail, (steps + 1, info.n_agents, info.n_actions))
        check_shape("action", episode.action, (steps, info.n_agents))

    def _row_index(self, indices: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
        """Return the rows [longest + 1, B] of all steps of episodes [B]; row 0 (padding) after an episode's end."""
        steps_T1 = np.arange(longest + 1)[:, None]
        rows = self._pages[indices][:, steps_T1[:, 0] // PAGE_ROWS].T * PAGE_ROWS + steps_T1 % PAGE_ROWS
        return np.where(steps_T1 <= self._length[indices], rows, 0)

    def _episode_rows(self, index: int) -> NDArray[np.int64]:
        return self._row_index(np.array([index]), int(self._length[index]))[:, 0]

    def _list_rows(self) -> NDArray[np.int64]:
        """List the rows of all steps of all episodes, in buffer order."""
        n_steps = self._length[: self._size] + 1
        episode = np.repeat(np.arange(self._size), n_steps)
        step = np.arange(len(episode)) - np.repeat(np.cumsum(n_steps) - n_steps, n_steps)
        return self._pages[episode, step // PAGE_ROWS] * PAGE_ROWS + step % PAGE_ROWS

    def _assign_pages(self, index: int) -> None:
        n_pages = -(-(int(self._length[index]) + 1) // PAGE_ROWS)
        if len(self._free) < n_pages:
            self._add_pages(n_pages)
        self._pages[index, :n_pages] = [self._free.pop() for _ in range(n_pages)]

    def _free_pages(self, index: int) -> None:
        pages = self._pages[index]
        self._free.extend(int(page) for page in pages[pages > 0][::-1])
        pages[:] = 0

    def _add_pages(self, n_required: int) -> None:
        """Add unused pages to the free list. More rows are allocated only if the allocated rows do not suffice."""
        n_pages = len(self._slots) // PAGE_ROWS
        n_new = max(n_required, MIN_NEW_PAGES, n_pages // 2)
        self._rows.reserve((n_pages + n_required) * PAGE_ROWS)
        n_new = min(n_new, len(self._rows) // PAGE_ROWS - n_pages)
        self._slots = np.concatenate([self._slots, np.full((n_new * PAGE_ROWS, 2), -1, np.int64)])
        self._free = [*range(n_pages + n_new - 1, n_pages - 1, -1), *self._free]

    def _write(self, index: int, episode: Episode, beta: NDArray[np.floating] | None) -> None:
        steps = episode.length
        action = np.zeros((steps + 1, self._info.n_agents), np.int64)
        reward, gate = np.zeros(steps + 1, np.float32), np.ones(steps + 1, np.float32)
        action[:-1], reward[:-1] = episode.action, episode.reward
        if beta is not None:
            gate[:-1] = beta
        values = {
            "obs": episode.obs,
            "state": episode.state,
            "avail": episode.avail,
            "action": action,
            "reward": reward,
            "beta": gate,
        }
        self._rows.write(self._episode_rows(index), values)


def _padding(info: EnvInfo) -> dict[str, NDArray[np.generic]]:
    avail = np.zeros((PAGE_ROWS, info.n_agents, info.n_actions), np.bool_)
    avail[..., 0] = True
    return {"avail": avail, "beta": np.ones(PAGE_ROWS, np.float32)}
