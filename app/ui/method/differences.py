"""What is held against published code, and where published code and this program differ on purpose."""

from dataclasses import dataclass

import streamlit as st

from app.ui.method.measured import write_table

_HELD = """
Tests load the weights that published code began with, feed the batches that it was fed, in float64, and compare what
came out: losses, gradient norms, Q values, targets, weights and target copies after several updates, greedy actions.
**QPLEX** (plain, padded, weighted heads, nonlinear, `dmaq`), **QMIX**, **VDN**, **CDS** (SMAC and football: rewards,
predictors, L1), **EMU**'s incentive inside a whole update and its curiosity, which is EMC's, agree to 1e-11; the first
three and the incentive, as measured, to 1e-15. **EMU**'s memory is driven through a stream of episodes: after every
step each node holds the published H (to the float32 in which theirs is kept), success flag, counters and embedding,
and every state enters the same node.
"""


@dataclass(frozen=True)
class Difference:
    """One thing that is done otherwise here."""

    whose: str
    published: str
    here: str


DIFFERENCES = (
    Difference(
        "QPLEX, CDS, EMU",
        "The attention regulariser is averaged over all steps of a batch, padding too.",
        "It is averaged over real transitions, so that a longer episode in the batch does not weaken it.",
    ),
    Difference(
        "PyMARL, QPLEX, CDS, EMU",
        "Episodes are counted before the one just collected: targets are copied after episode 200·k + 1, where an "
        "episode has several updates after its first.",
        "That one is counted too: after the last update of episode 200·k (`train.target_interval`).",
    ),
    Difference(
        "EMU",
        "The incentive also enters transitions that end an episode, where nothing is bootstrapped.",
        "It is masked there (`incentive.mask_terminal`, C13); the preset `emu_code` leaves it.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "On SMAC the L1 term on private values is averaged over every unrolled step, the last state and padding too.",
        "It is averaged over real transitions, as CDS's football code does.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "Predictors take padding into their chunks of 256 rows and mask it; on SMAC a chunk of padding alone makes "
        "them NaN.",
        "Chunks hold real transitions alone, so there are fewer and fuller ones.",
    ),
    Difference(
        "CDS on football",
        "Every 16 episodes predictors learn from a batch of their own, drawn uniformly.",
        "They learn from the batch that the learner has just used, drawn as `cds.replay` says.",
    ),
    Difference(
        "CDS, EMU(CDS)",
        "The policy divergence divides probabilities: NaN where one underflows to 0.",
        "It subtracts logarithms, which is the same number wherever theirs is finite.",
    ),
    Difference(
        "EMU on football",
        "The target mixer's attention reads the observations of t.",
        "It reads those of t + 1, the step that it values, as CDS's football code does.",
    ),
    Difference(
        "EMU's memory",
        "The tree is searched in raw embeddings; the node found is tested in the scaling of this moment (raw before "
        "the first tree) and where it stands by now.",
        "Search and test use one scaling (A12). With `memory.index = stale_target_update` it is that of the last "
        "target update, and nodes are where they stood then.",
    ),
    Difference(
        "EMU's memory",
        "Where a node was evicted after the tree was built, whatever stands in its place is tested.",
        "That is a miss.",
    ),
)


def show() -> None:
    """What was compared, then list the differences."""
    st.markdown(_HELD)
    st.caption(
        "`tests/reference/make_published_fixtures.py` made the arrays and names the repositories and commits; "
        "`tests/core/test_published_learners.py` and `test_published_memory.py` compare."
    )
    st.markdown(
        "What differs on purpose, beside what presets set. The fixtures stand clear of these or make them equal; "
        "each test says how."
    )
    rows = [(d.whose, d.published, d.here) for d in DIFFERENCES]
    st.markdown(write_table(("Code", "As published", "Here"), rows))
