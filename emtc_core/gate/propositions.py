"""Numerical check of the method's two propositions on a grid task with an exactly known V*.

This module has a small tabular task, its solution by value iteration, a tabular memory with a given error, and the two
checks. Gate and incentive are computed by the same functions as in training (package `gate`). There are no networks and
no `EpisodicMemory` here.

Letters: S states, A = 4 actions, n transitions, K steps from a poor memory to a perfect one.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from emtc_core.arrays import make_generator
from emtc_core.gate.gate import delta_mem
from emtc_core.gate.incentive import incentive
from emtc_core.gate_laws import gate_coefficient

Float64s = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]
Behavior = Literal["greedy", "random"]

MOVES: Final = ((0, 1), (0, -1), (1, 0), (-1, 0))
GOAL_REWARD: Final = 10.0
WORST_COST: Final = 0.5
_TOLERANCE: Final = 1e-9
"""Tolerance for rounding when a bound is checked [return]."""


@dataclass(frozen=True)
class GridTask:
    """A grid of S = side² cells with costs, and one goal cell that ends the episode. Source: own test task."""

    position: Float64s  # [S, 2] latent coordinates of each state in cells [map units]
    transition: Float64s  # [A, S, S] probability P(s' | s, a); all zero from the goal
    reward: Float64s  # [S] [reward] for entering a state
    terminal: Bools  # [S] boolean
    gamma: float


@dataclass(frozen=True)
class Solution:
    """Result of value iteration. Source: Bellman's optimality equation."""

    v: Float64s  # [S] V* [return], 0 at the goal
    q: Float64s  # [A, S] Q* [return]


@dataclass(frozen=True)
class Transitions:
    """n sampled transitions (s, a, r, s'). Source: own test task."""

    state: Indices  # shape [n], indices
    action: Indices  # shape [n], indices
    next_state: Indices  # shape [n], indices
    reward: Float64s  # shape [n] [reward]
    terminated: Bools  # shape [n], boolean


@dataclass(frozen=True)
class TabularMemory:
    """A memory of states: the stored state that a lookup of each state returns, and its value (Proposition 1)."""

    retrieved: Indices  # [S] index of the stored state that a lookup of s returns; undefined at the goal
    h: Float64s  # [S] H of the stored state [return], equal to V_E(s); 0 at the goal
    n_nodes: int


@dataclass(frozen=True)
class Proposition1:
    """Delta_mem and Delta_opt of n transitions, and the bound of their difference [return] (Proposition 1)."""

    delta_opt: Float64s  # shape [n] [return]
    delta_mem: Float64s  # shape [n] [return]
    eps_rep: float
    eps_store: float
    alpha: float
    lipschitz_bound: float  # L delta, never below eps_rep

    @property
    def largest_difference(self) -> float:
        """Largest |Delta_mem - Delta_opt| [return]."""
        return float(np.abs(self.delta_mem - self.delta_opt).max(initial=0.0))

    @property
    def share_below(self) -> float:
        """Fraction of transitions with Delta_mem <= Delta_opt + alpha (Proposition 1 as printed)."""
        return float(np.mean(self.delta_mem <= self.delta_opt + self.alpha + _TOLERANCE))

    @property
    def share_inside(self) -> float:
        """Fraction of transitions with |Delta_mem - Delta_opt| <= alpha, which the paper's text also uses."""
        return float(np.mean(np.abs(self.delta_mem - self.delta_opt) <= self.alpha + _TOLERANCE))


@dataclass(frozen=True)
class Proposition2:
    """Difference between the gated gradient and the oracle's gradient while H approaches V* (Proposition 2)."""

    mix: Float64s  # [K] dimensionless, 0: the poor memory; 1: H = V*
    distance: Float64s  # [K] max |H - V*| [return]
    gradient_error: Float64s  # [K] |g - g*| / |g*|, dimensionless
    beta_mean: Float64s  # [K] mean gate over the transitions, dimensionless
    share_overestimated: float  # fraction of the transitions with max Q^-(s') > V*(s')


def make_task(*, gamma: float, seed: int, side: int = 10, slip: float = 0.0) -> GridTask:
    """Make a grid task with random costs and a random goal.

    Args:
        gamma: Discount in [0, 1).
        seed: Chooses goal and costs.
        side: Cells per edge, >= 2.
        slip: Probability in [0, 1] that a move goes in a random direction; 0 makes the task deterministic.
    """
    rng = make_generator(seed, "proposition task")
    S = side * side
    cell_S2 = np.stack(np.divmod(np.arange(S), side), axis=1)
    moved_AS2 = np.clip(cell_S2 + np.array(MOVES)[:, None, :], 0, side - 1)
    straight_ASS = np.eye(S)[moved_AS2[..., 0] * side + moved_AS2[..., 1]]
    transition = (1 - slip) * straight_ASS + slip * straight_ASS.mean(axis=0)
    goal = int(rng.integers(S))
    reward = -WORST_COST * rng.random(S)
    reward[goal] = GOAL_REWARD
    terminal = np.arange(S) == goal
    transition[:, goal] = 0.0
    return GridTask(cell_S2.astype(np.float64), transition, reward, terminal, gamma)


def solve(task: GridTask) -> Solution:
    """Compute V* and Q* by value iteration: V(s) <- max_a sum_s' P(s'|s,a) (r(s') + gamma V(s')).

    The iteration stops when the contraction bounds the error of V by 1e-10 [return].
    """
    v = np.zeros(len(task.reward))
    contraction = task.gamma / (1 - task.gamma)
    error_bound = np.inf
    while error_bound > 1e-10:
        best = look_ahead(task, v).max(axis=0)
        error_bound = contraction * float(np.abs(best - v).max())
        v = best
    return Solution(v, look_ahead(task, v))


def look_ahead(task: GridTask, v: Float64s) -> Float64s:
    """Compute the action values of state values: expected reward + gamma v(s'); 0 at the goal.

    Source: Bellman's optimality equation.

    Args:
        task: The task.
        v: [S] [return].

    Returns:
        [A, S] [return].
    """
    return task.transition @ (task.reward + task.gamma * v)


def evaluate_random_policy(task: GridTask) -> Float64s:
    """Compute the value of the random policy with a linear solve. It is a model of an early memory.

    Source: Bellman's equation of a policy.

    Returns:
        [S] [return].
    """
    mean_SS = task.transition.mean(axis=0)
    return np.linalg.solve(np.eye(len(mean_SS)) - task.gamma * mean_SS, mean_SS @ task.reward)


def sample_transitions(task: GridTask, solution: Solution, *, behavior: Behavior, n: int, seed: int) -> Transitions:
    """Sample n transitions from uniformly drawn non-terminal states.

    Args:
        task: The task.
        solution: Its optimal values.
        behavior: "greedy" takes an optimal action, "random" a random one.
        n: Number of transitions.
        seed: Seed of states, actions and slips.
    """
    rng = make_generator(seed, "proposition transitions")
    state = rng.choice(np.flatnonzero(~task.terminal), size=n)
    action = rng.integers(len(MOVES), size=n) if behavior == "random" else solution.q.argmax(axis=0)[state]
    cumulative_nS = task.transition[action, state].cumsum(axis=1)
    threshold_n1 = rng.random((n, 1)) * cumulative_nS[:, -1:]
    next_state = (cumulative_nS > threshold_n1).argmax(axis=1)
    return Transitions(state, action, next_state, task.reward[next_state], task.terminal[next_state])


def make_memory(task: GridTask, v: Float64s, *, delta: float, noise: float, seed: int) -> TabularMemory:
    """Store states in a random order. A state within delta of a stored state merges into it (Proposition 1).

    The goal is not stored, because the gate uses H = 0 after a terminal step.

    Args:
        task: Contains the positions.
        v: [S], values of a memory without error [return].
        delta: Merge radius [cells]; with at most 1 every state is stored.
        noise: H has a uniform error of at most this [return].
        seed: Seed of order and errors.
    """
    rng = make_generator(seed, "proposition memory")
    distance_SS = _compute_distances(task)
    stored: list[int] = []
    for s in rng.permutation(np.flatnonzero(~task.terminal)):
        if not stored or distance_SS[s, stored].min() >= delta:
            stored.append(int(s))
    retrieved = np.array(stored)[distance_SS[:, stored].argmin(axis=1)]
    h_stored = v + noise * rng.uniform(-1, 1, size=len(v))
    return TabularMemory(retrieved, np.where(task.terminal, 0.0, h_stored[retrieved]), len(stored))


def check_proposition_1(
    task: GridTask, v: Float64s, memory: TabularMemory, transitions: Transitions, *, delta: float
) -> Proposition1:
    """Compare the consistency error of a memory with that of V* (Proposition 1).

    alpha = (1 + gamma) (eps_rep + eps_store), with the maxima over all states. The proof inserts V* twice into Eq. 7
    and uses |V_E(s) - V*(s)| <= eps_rep + eps_store, which bounds the difference from both sides.

    Args:
        task: The task.
        v: [S] V* [return].
        memory: The memory.
        transitions: Transitions on which the errors are compared.
        delta: Merge radius of the memory [cells].
    """
    s, s_next, alive = transitions.state, transitions.next_state, ~task.terminal
    retrieved_v = v[memory.retrieved]
    eps_rep = float(np.abs(v - retrieved_v)[alive].max())
    eps_store = float(np.abs(memory.h - retrieved_v)[alive].max())
    return Proposition1(
        delta_opt=delta_mem(transitions.reward, v[s], v[s_next], gamma=task.gamma),
        delta_mem=delta_mem(transitions.reward, memory.h[s], memory.h[s_next], gamma=task.gamma),
        eps_rep=eps_rep,
        eps_store=eps_store,
        alpha=(1 + task.gamma) * (eps_rep + eps_store),
        lipschitz_bound=_compute_lipschitz_constant(task, v) * delta,
    )


def check_proposition_2(
    task: GridTask,
    solution: Solution,
    transitions: Transitions,
    *,
    mix: Float64s,
    tau: float,
    target_error: float,
    clamp: Literal["none", "positive"],
    seed: int,
) -> Proposition2:
    """Compare the gated gradient with the oracle's, -2 grad Q (r + gamma V*(s') - Q), as H -> V* (Proposition 2).

    Q is tabular with random parameters, the target network Q^- is Q* plus normal errors, rho = 1, and beta
    is computed from H = (1 - mix) V_random + mix V*.

    Args:
        task: The task.
        solution: Its optimal values.
        transitions: The gradient is averaged over these.
        mix: [K] in [0, 1], dimensionless.
        tau: Gate temperature [return].
        target_error: Standard deviation of Q^- - Q* [return].
        clamp: As in `incentive`; "positive" is EMU's code.
        seed: Seed of Q and Q^-.
    """
    rng = make_generator(seed, "proposition networks")
    q_online = solution.q + GOAL_REWARD / 2 * rng.standard_normal(solution.q.shape)
    q_target = solution.q + target_error * rng.standard_normal(solution.q.shape)
    q_next = np.where(transitions.terminated, 0.0, q_target.max(axis=0)[transitions.next_state])
    v_next = solution.v[transitions.next_state]
    oracle = _compute_gradient(transitions.reward + task.gamma * v_next, q_online, transitions)
    v_poor = evaluate_random_policy(task)
    errors, betas = np.empty(len(mix)), np.empty(len(mix))
    for k, share in enumerate(mix):
        h = (1 - share) * v_poor + share * solution.v
        target, betas[k] = _compute_gated_target(h, q_next, transitions, gamma=task.gamma, tau=tau, clamp=clamp)
        errors[k] = np.linalg.norm(_compute_gradient(target, q_online, transitions) - oracle) / np.linalg.norm(oracle)
    return Proposition2(
        mix=mix,
        distance=(1 - mix) * float(np.abs(v_poor - solution.v).max()),
        gradient_error=errors,
        beta_mean=betas,
        share_overestimated=float(np.mean(q_next > v_next + _TOLERANCE)),
    )


def _compute_gated_target(
    h: Float64s,
    q_next: Float64s,
    transitions: Transitions,
    *,
    gamma: float,
    tau: float,
    clamp: Literal["none", "positive"],
) -> tuple[Float64s, float]:
    """Compute the target of Eq. 10 [n], and the mean of beta."""
    h_next = h[transitions.next_state]
    beta = gate_coefficient(delta_mem(transitions.reward, h[transitions.state], h_next, gamma=gamma), tau=tau)
    rho = np.where(transitions.terminated, 0.0, 1.0)
    r_p = incentive(h_next, q_next, rho, gamma=gamma, clamp=clamp)
    return transitions.reward + beta * r_p + gamma * q_next, float(beta.mean())


def _compute_gradient(target: Float64s, q: Float64s, transitions: Transitions) -> Float64s:
    """Compute the gradient [A, S] of mean (target - Q(s, a))² with respect to the table Q."""
    gradient = np.zeros_like(q)
    error = target - q[transitions.action, transitions.state]
    np.add.at(gradient, (transitions.action, transitions.state), -2 * error / len(error))
    return gradient


def _compute_distances(task: GridTask) -> Float64s:
    return np.linalg.norm(task.position[:, None] - task.position[None], axis=-1)


def _compute_lipschitz_constant(task: GridTask, v: Float64s) -> float:
    """Compute the smallest L with |V*(s) - V*(u)| <= L |x(s) - x(u)| for non-terminal states [return per cell]."""
    alive = ~task.terminal
    distance_SS = _compute_distances(task)[np.ix_(alive, alive)]
    np.fill_diagonal(distance_SS, np.inf)
    return float((np.abs(v[alive, None] - v[None, alive]) / distance_SS).max())
