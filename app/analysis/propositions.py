"""The numerical check of both propositions on one grid task, as the page Method and its two figures show it."""

from typing import Final, NamedTuple

import numpy as np

from emtc_core.gate.propositions import (
    Behavior,
    GridTask,
    Proposition1,
    Proposition2,
    Solution,
    check_proposition_1,
    check_proposition_2,
    make_memory,
    make_task,
    sample_transitions,
    solve,
)

N_TRANSITIONS: Final = 1000
N_MIXES: Final = 41
"""Number of points between the values of the random policy and V*."""


class SolvedTask(NamedTuple):
    """A grid task with its exact solution."""

    task: GridTask
    solution: Solution
    gamma: float
    seed: int


class Proposition1Check(NamedTuple):
    """The check of proposition 1 on one task."""

    result: Proposition1
    n_nodes: int
    """Number of nodes of the memory."""
    gamma: float
    seed: int


class Proposition2Check(NamedTuple):
    """The check of proposition 2 on one task, for `N_MIXES` memories and, as the last point, the selected one."""

    unclamped: Proposition2
    """Optimal actions, without EMU's clamp of the incentive."""
    clamped: Proposition2
    """Optimal actions, with EMU's clamp."""
    random_actions: Proposition2
    """Random actions, without EMU's clamp."""
    gamma: float
    seed: int


def make_solved_task(*, gamma: float = 0.99, seed: int = 1, slip: float = 0.0) -> SolvedTask:
    """Make a grid task and solve it by value iteration.

    Args:
        gamma: Discount factor.
        seed: Random seed of goal, costs, transitions and errors.
        slip: Probability of a move in a random direction.
    """
    task = make_task(gamma=gamma, seed=seed, slip=slip)
    return SolvedTask(task, solve(task), gamma, seed)


def run_proposition_1_check(solved: SolvedTask, *, noise: float = 0.5, delta: float = 2.0) -> Proposition1Check:
    """Check proposition 1 with a memory whose stored values have errors.

    Args:
        solved: The task.
        noise: Maximum of the uniform error of each stored H [return].
        delta: Retrieval radius [cells]; states within this distance share one node.
    """
    task, v = solved.task, solved.solution.v
    memory = make_memory(task, v, delta=delta, noise=noise, seed=solved.seed)
    transitions = sample_transitions(task, solved.solution, behavior="random", n=N_TRANSITIONS, seed=solved.seed)
    result = check_proposition_1(task, v, memory, transitions, delta=delta)
    return Proposition1Check(result, memory.n_nodes, solved.gamma, solved.seed)


def run_proposition_2_check(
    solved: SolvedTask, *, mix: float = 1.0, tau: float = 1.2, target_error: float = 1.0
) -> Proposition2Check:
    """Check proposition 2 for memories between the values of the random policy and V*.

    Args:
        solved: The task.
        mix: Position of the selected memory: 0 for the values of the random policy, 1 for V*.
        tau: Temperature of the gate [return].
        target_error: Standard deviation of the error of the target network [return].
    """
    mixes = np.append(np.linspace(0.0, 1.0, N_MIXES), mix)

    def check(behavior: Behavior, *, clamp: bool = False) -> Proposition2:
        transitions = sample_transitions(
            solved.task, solved.solution, behavior=behavior, n=N_TRANSITIONS, seed=solved.seed
        )
        return check_proposition_2(
            solved.task, solved.solution, transitions,
            mix=mixes, tau=tau, target_error=target_error, clamp="positive" if clamp else "none", seed=solved.seed,
        )  # fmt: skip

    return Proposition2Check(check("greedy"), check("greedy", clamp=True), check("random"), solved.gamma, solved.seed)
