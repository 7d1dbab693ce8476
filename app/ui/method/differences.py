"""Deliberate differences between published code and this program, and which results were compared."""

from dataclasses import dataclass
from typing import Final

import streamlit as st

from app.ui.widgets.result_table import write_table

_COMPARED: Final = """
Tests load the initial weights of published code, use the same batches in float64, and compare the results: losses,
gradient norms, Q values, targets, weights and target copies after several updates, and greedy actions. **QPLEX**
(plain, padded, weighted heads, nonlinear, `dmaq`), **QMIX**, **VDN**, **CDS** (SMAC and football: rewards, predictors,
L1), **EMC** (a complete update with episodic control and curiosity), **EMU**'s incentive within a complete update and
its curiosity module, **DMIX** (the same quantile fractions, with and without double Q-learning) and **MAPPO** (the same
rollouts: several passes with clipped ratios, dead agents, an episode that is cut, value normalization) agree to 1e-11;
QPLEX, QMIX, VDN and the incentive agree to 1e-15.

The memories of **EMU** and **EMC** are compared on a stream of episodes: after each step every node has the published H
(EMU's to float32, the published precision; EMC's to 1e-12) and embedding, EMU's also its success flag and counters, and
every state enters the same node.
"""


@dataclass(frozen=True)
class Difference:
    """One deliberate difference: whose code, what it does, and what this program does."""

    code: str
    published: str
    here: str


DIFFERENCES: Final = (
    Difference(
        "QPLEX, CDS, EMU",
        "The attention regulariser is averaged over all steps of a batch, including padding.",
        "It is averaged over real transitions, so that a longer episode in the batch does not reduce its weight.",
    ),
    Difference(
        "PyMARL, QPLEX, CDS, EMU",
        "The episode count excludes the episode just collected: targets are copied after episode 200·k + 1, if an "
        "episode has several updates, after its first.",
        "The count includes it: targets are copied after the last update of episode 200·k (`train.target_interval`).",
    ),
    Difference(
        "EMU",
        "The incentive is also added to transitions that end an episode, which have no bootstrap value.",
        "It is masked there (`incentive.mask_terminal`, C13); the preset `emu_code` does not mask it.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "On SMAC the L1 term on private values is averaged over every unrolled step, including the last state and "
        "padding.",
        "It is averaged over real transitions, as in CDS's football code.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "The predictors' chunks of 256 rows contain padding, which is masked; on SMAC a chunk with only padding makes "
        "them NaN.",
        "Chunks contain only real transitions, so there are fewer chunks and each has more transitions.",
    ),
    Difference(
        "CDS on football",
        "Every 16 episodes the predictors learn from a separate, uniformly drawn batch.",
        "They learn from the learner's last batch, drawn as set by `cds.replay`.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "The policy divergence divides probabilities: NaN if one underflows to 0.",
        "It subtracts logarithms, which gives the same value if the published one is finite.",
    ),
    Difference(
        "EMU on football",
        "The attention of the target mixer reads the observations of step t.",
        "It reads the observations of step t + 1, whose value it computes, as CDS's football code does.",
    ),
    Difference(
        "EMU's memory",
        "The tree is searched with raw embeddings. The node found is tested with the current scaling (raw before the "
        "first tree) and its current position.",
        "Search and test use one scaling (A12). With `memory.index = stale_target_update` both the scaling and the "
        "positions are those of the last target update.",
    ),
    Difference(
        "EMC's memory",
        "A state merges into a node if `np.allclose` is true: no coordinate differs by more than 1e-8 plus 1e-5 times "
        "its absolute value. Padding after the end of an episode is stored as states with H = 0.",
        "The limit is absolute: `memory.delta` = 1e-5. Padding is not stored.",
    ),
    Difference(
        "EMC",
        "The episodic target of a transition that ends an episode is r + γH(s′), if the memory has a node for s′. This "
        "H is 0, unless an episode also passed through the state earlier.",
        "It is r: H(s′) of such a transition counts as 0.",
    ),
    Difference(
        "EMC, EMU: curiosity",
        "The scale is multiplied by the decay rate after the first update that is at least one cycle later than the "
        "previous reduction, so each cycle is up to one episode too long.",
        "Cycle k ends at env step k times `curiosity.decay_cycle`.",
    ),
    Difference(
        "EMC, EMU: curiosity",
        "The VDN network, its target and its slow copy start with the weights of the learner's agent network.",
        "They start with other random weights than the agent network.",
    ),
    Difference(
        "EMC's and EMU's memory",
        "If several nodes are equally near, the k-d tree decides which one is found.",
        "The one with the lowest slot is found.",
    ),
    Difference(
        "EMU on football",
        "The success flag of an episode is true for every goal, also for one of the opponents.",
        "Only a goal of the own team is a success.",
    ),
    Difference(
        "DMIX",
        "Greedy actions in tests are chosen from the mean over random quantile fractions, so they are not "
        "reproducible.",
        "In tests the fractions are equally spaced (the midpoints of 32 intervals). In training "
        "they are random, as published.",
    ),
    Difference(
        "MAPPO",
        "Each of eight environments plays 400 steps per update. An episode may continue in the next update; its last "
        "value is then the bootstrap.",
        "Whole episodes are collected until they have at least 3,200 transitions together (`mappo.rollout_steps`), so "
        "no episode is cut. Episodes that were played in the same round and are not needed, at most seven, are part of "
        "the next update, which computes their action probabilities with its own weights.",
    ),
    Difference(
        "MAPPO",
        "Minibatches have equal sizes; the rows that remain after the division are not used in this pass.",
        "The rows that remain are used: the last minibatch is smaller.",
    ),
    Difference(
        "MAPPO",
        "The environment appends the agent's one-hot id to each observation and state, so stacked frames repeat it.",
        "The id is appended once, after the stacked frames.",
    ),
    Difference(
        "EMU's memory",
        "If a node was evicted after the tree was built, the node that replaced it is tested.",
        "The lookup is a miss.",
    ),
)


def show() -> None:
    """Draw the comparison and the table of differences."""
    st.markdown(_COMPARED)
    st.caption(
        "`tests/reference/make_published_fixtures.py` makes the arrays and names the repositories and commits; "
        "`tests/core/test_published_learners.py` and `test_published_memory.py` compare them."
    )
    st.markdown(
        "Deliberate differences that no preset removes. The compared arrays avoid these cases or make them equal; each "
        "test states how."
    )
    rows = [(difference.code, difference.published, difference.here) for difference in DIFFERENCES]
    st.markdown(write_table(("Code", "Published", "Here"), rows))
