"""The environment interface: vectorized, independent of any framework, the same for every game.

Contents: the protocol `VectorEnv` with its data classes, the protocol `Adapter` of the environment modules, and checks
that several adapters share. The list of environments is in `registry.py`.

An ended episode is absorbing: `step` repeats its last observation with reward 0 until the next `reset`. So a batch can
be stepped together until its slowest episode ends.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.scene import Scene
from emtc_core.errors import EmtcError, EnvUnavailableError

if TYPE_CHECKING:  # loading the settings takes half of the start time of a football worker, which does not use them
    from emtc_core.config.train import EnvConfig


class ResetNeededError(EmtcError):
    """`step` was called before the first `reset`."""


@dataclass(frozen=True)
class EnvInfo:
    """Sizes and bounds of one environment and map."""

    env: str
    map: str
    n_agents: int
    n_actions: int
    obs_dim: int
    state_dim: int
    episode_limit: int
    """Maximum number of steps of an episode."""
    reward_range: tuple[float, float]
    agent_block: int = 0
    """Width of one agent's block in the state (d_u of the attention mixer).

    The first n_agents * agent_block entries of the state are these blocks. 0: no such blocks, the mixer uses obs.
    """
    action_names: tuple[str, ...] = ()
    enemy_names: tuple[str, ...] = ()
    repeats_starts: bool = True
    """Whether two resets with the same seed give the same start."""


@dataclass(frozen=True)
class Observation:
    """Arrays of B environments after a reset or a step. They are new arrays, not views of internal buffers.

    Source: the environment interface of PyMARL, batched.
    """

    obs: NDArray[np.float32]  # [B, N, O] [observation features]
    state: NDArray[np.float32]  # [B, S] [state features]
    avail: NDArray[np.bool_]  # [B, N, A] boolean, whether the action is available
    reward: NDArray[np.float32]  # [B] [reward], 0 after a reset
    terminated: NDArray[np.bool_]  # [B] boolean, the game ended by its own rules: won, lost or drawn
    truncated: NDArray[np.bool_]  # [B] boolean, the time limit ended the episode; never true together with terminated
    won: NDArray[np.bool_]  # [B] boolean, the episode ended in success
    infos: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Name -> [B], further values of this step [unit varies]; NaN: missing."""


@runtime_checkable
class VectorEnv(Protocol):
    """B copies of one game that are stepped together."""

    @property
    def info(self) -> EnvInfo:
        """Sizes and bounds, the same for every copy."""
        ...

    @property
    def n_envs(self) -> int:
        """Number of copies, B."""
        ...

    def reset(self, seed: int | None = None) -> Observation:
        """Start a new episode in every copy.

        Args:
            seed: The random numbers of copy b depend only on (seed, b). None: every copy continues with its own
                random generator.
        """
        ...

    def step(self, actions: NDArray[np.integer]) -> Observation:
        """Advance every running copy by one step.

        Source: the step of PyMARL's environments, batched.

        Args:
            actions: [B, N], action index of each agent. The row of an ended copy is ignored.

        Returns:
            The observation after the step.

        Raises:
            ResetNeededError: If `reset` was never called.
            ValueError: If `avail` forbids the action of an agent in a running copy.
        """
        ...

    def scene(self, states: NDArray[np.float32]) -> Scene:
        """Convert the stored states of one episode to frames. Needs no game engine.

        Args:
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        ...

    def close(self) -> None:
        """Release processes and engines. A second call has no effect."""
        ...


def blank_observation(info: EnvInfo, copies: int) -> Observation:
    """Make an observation of `copies` games filled with zeros: no action is available, no episode has ended."""
    return Observation(
        obs=np.zeros((copies, info.n_agents, info.obs_dim), np.float32),
        state=np.zeros((copies, info.state_dim), np.float32),
        avail=np.zeros((copies, info.n_agents, info.n_actions), bool),
        reward=np.zeros(copies, np.float32),
        terminated=np.zeros(copies, bool),
        truncated=np.zeros(copies, bool),
        won=np.zeros(copies, bool),
    )


def copy_observation(observation: Observation) -> Observation:
    """Copy every array, so that later writes to the internal buffers do not change a returned observation."""
    arrays = {name: array.copy() for name, array in vars(observation).items() if name != "infos"}
    return Observation(**arrays, infos={name: array.copy() for name, array in observation.infos.items()})


def check_was_reset(was_reset: bool) -> None:
    """Check that `reset` was called before `step`.

    Raises:
        ResetNeededError: If it was not.
    """
    if not was_reset:
        raise ResetNeededError("step() was called before the first reset(). Call reset(seed) first.")


def check_actions(actions: NDArray[np.integer], avail: NDArray[np.bool_], over: NDArray[np.bool_]) -> None:
    """Check that the actions of all running copies are available.

    Source: `VectorEnv.step`.

    Args:
        actions: [B, N], action index of each agent.
        avail: [B, N, A] boolean, available actions.
        over: [B] boolean, whether the episode of a copy has ended. Actions of such copies are not checked.

    Raises:
        ValueError: If an action is not available. The message contains the first one with its agent and copy.
    """
    n_actions = avail.shape[-1]
    in_range = (actions >= 0) & (actions < n_actions)
    index = np.where(in_range, actions, 0)[..., None].astype(np.intp)
    illegal = ~(in_range & np.take_along_axis(avail, index, axis=-1)[..., 0]) & ~over[:, None]
    if illegal.any():
        copy, agent = np.argwhere(illegal)[0]
        allowed = np.flatnonzero(avail[copy, agent]).tolist()
        raise ValueError(f"action of agent {agent} in copy {copy} must be one of {allowed}, got {actions[copy, agent]}")


class Adapter(Protocol):
    """What an environment module must define at its top level. Its import must not load an engine, torch or numba."""

    HOW_TO_GET: str
    """How to install the environment on a machine without it, in one line."""

    def list_maps(self) -> list[str]:
        """List the maps that `--map` accepts, in display order."""
        ...

    def find_unavailable_reason(self) -> str:
        """Return one sentence why the environment cannot run here; "" if it can."""
        ...

    def find_info(self, config: "EnvConfig") -> EnvInfo | None:
        """Return the sizes without starting an engine; None if only a started environment has them."""
        ...

    def make_env(self, config: "EnvConfig", *, n_envs: int) -> VectorEnv:
        """Start `n_envs` copies of one map."""
        ...

    def make_scene(self, map: str, states: NDArray[np.float32]) -> Scene:
        """Make the frames of one episode from its stored states. Needs no installed game.

        Args:
            map: Name of the map.
            states: [T, S] [state features]. Source: `Observation.state` of each step.
        """
        ...


def check_map(env: str, map: str, maps: list[str]) -> None:
    """Check that a map is in the list of an environment's maps.

    Args:
        env: Name of the environment, for the message.
        map: Name of the map.
        maps: Maps of the environment.

    Raises:
        EnvUnavailableError: If it is not. The message contains the most similar map.
    """
    if map in maps:
        return
    close = get_close_matches(map, maps, n=1, cutoff=0.5)
    meant = f"Did you mean {close[0]}? " if close else ""
    raise EnvUnavailableError(f"{env} has no map {map!r}.", hint=f"{meant}List all maps with: emtc envs")


def check_can_run(env: str, obstacle: str, how_to_get: str) -> None:
    """Check that nothing is missing for an environment.

    Args:
        env: Name of the environment, for the message.
        obstacle: Result of `find_unavailable_reason`; "" if nothing is missing.
        how_to_get: How to install the environment.

    Raises:
        EnvUnavailableError: If `obstacle` is not empty.
    """
    if obstacle:
        raise EnvUnavailableError(f"{env} cannot run here: {obstacle}", hint=f"To get it: {how_to_get}")
