"""What was measured with this program, and what is held against published code.

The output of its own commands, as it was written; tables as Markdown, whose text wraps and can be searched in the
browser. How a baseline's settings compare with what its authors published, with a reason for each difference; where
published code and this program differ on purpose; which intervals name a level, and how often each held the truth.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st

from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.format import MISSING, escape_markdown, format_number


def show(algo: str, env: str, map: str) -> None:
    """List every difference of a baseline's preset `paper` from the published configuration."""
    st.markdown(f"##### {escape_markdown(algo)}, as published and as compared here")
    comparison = find_published_comparison(algo, env, map)
    if comparison is None:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Where", "Why"), comparison.rows))
    st.caption(escape_markdown(comparison.summary))


@dataclass(frozen=True)
class ComparisonWithPublished:
    """Comparison of a baseline's preset `paper` with the published configuration."""

    summary: str
    """How many values were compared, and the commits that the published ones are from."""
    rows: tuple[tuple[str, ...], ...]
    """The differences as Markdown: key, our value, published value, repository and file, reason."""


def find_published_comparison(algo: str, env: str, map: str) -> ComparisonWithPublished | None:
    """Find the stored comparison of a baseline on a task. Return None if no configuration is published."""
    data = _read_published()
    game = "smac" if env in ("skirmish", "smac", "smax") else env
    for case in data["cases"]:
        if (case["algo"], case["game"], case["map"]) == (algo, game, map):
            rows = tuple(
                (f"`{key}`", f"`{ours}`", f"`{published}`", escape_markdown(source), escape_markdown(reason))
                for key, ours, published, source, reason in (data["differences"][i] for i in case["differences"])
            )
            return ComparisonWithPublished(case["summary"], rows)
    return None


@cache
def _read_published() -> dict[str, Any]:
    """Read the comparisons that `python -m tests.reference.published_settings` wrote."""
    return json.loads((files("app.ui.method") / "published_differences.json").read_text("utf-8"))


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; its cells are safe already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_COMMAND = "emtc bench embedding --json"
_QUANTITIES = {
    "purity": "purity of neighbours [R²]",
    "info_nce": "InfoNCE [nats]",
    "info_nce_accuracy": "InfoNCE accuracy [fraction]",
    "info_nce_chance": "… by chance",
    "merge_rate": "states merged [fraction]",
    "return_r2": "decoded return [R²]",
}
_SCALES = ("none", "std")
_SHAPES, _STUDY = "gate-shapes.csv", "gate-readings.csv"


def show_return_scale() -> None:
    """Show the table by which the default of `embed.return_scale` was chosen."""
    st.markdown("##### Measured: what `embed.return_scale` does")
    st.markdown(
        "The same recorded episodes, embedded with the returns as they are (`none`) and divided by their running "
        "standard deviation (`std`). InfoNCE on every fifth episode, which no refit saw; purity is the share of the "
        "variance of H that the ten nearest nodes out of *other* episodes explain; merges at δ = 1.8e-2, after the "
        "first refit. `std` hears the contrast better on 2s3z and football and worse on 3m; purity hardly differs. "
        "It is the default because it does not depend on the unit of the reward."
    )
    tasks = list(dict.fromkeys(map for _, map, _ in read_measured()))
    head = ["", *(f"{escape_markdown(task)}: {scale}" for task in tasks for scale in _SCALES)]
    rows = [
        [label, *(_cell(read_measured(), (what, task, scale)) for task in tasks for scale in _SCALES)]
        for what, label in _QUANTITIES.items()
    ]
    st.markdown(write_table(head, rows))
    st.caption(f"Means over two embedders of a run of 20,000 env steps: `{_COMMAND}`.")


def show_readings() -> None:
    """Show how each reading judged the same episodes, and what training with each led to."""
    st.markdown("##### Measured: what the readings of the gate do")
    st.markdown(
        "The paper shows Δ̄ falling to 0 and β̄ rising to 1. On the recorded episodes of a run of 80,000 env steps no "
        "reading does that: Δ̄ *rises* with the returns that there are to confuse, and β̄ falls. A reading that finds "
        "the node which the episode itself has just written hardly acts; one that looks at what other trajectories "
        "wrote closes for a quarter to two fifths of the transitions."
    )
    st.markdown(_read_table(_SHAPES))
    st.caption("`emtc export RUN --figure gate-readings`, RUN: EMTC(QPLEX), preset paper, seed 1, 80,000 env steps.")
    st.markdown(
        "Trained with each reading, and with its gate off, over three seeds: no interval of an outcome lies apart from "
        "that of the same reading without its gate. Intervals this wide hide all but the largest effects."
    )
    st.markdown(_read_table(_STUDY))
    st.caption(
        "`emtc sweep gate-readings`, then `emtc export --table gate-readings`: mean [percentile bootstrap of "
        "2000 draws, which of three seeds covers 74 %], with a target copy every 50 episodes, as the preset had it "
        "then."
    )


def _read_table(name: str) -> str:
    text = (files("app.bench") / "measured" / name).read_text()
    head, *rows = ([escape_markdown(cell) for cell in row] for row in csv.reader(text.splitlines()))
    return write_table(head, rows)


@cache
def read_measured() -> Mapping[tuple[str, str, str], float]:
    """Read the figures: (quantity, map, scale) → value."""
    return _read_figures("embedding.json")


def _read_figures(file: str) -> dict[tuple[str, str, str], float]:
    figures = json.loads((files("app.bench") / "measured" / file).read_text())["figures"]
    names = (figure["name"].split(".") for figure in figures)
    return {(a, b, c): figure["value"] for (_, a, b, c), figure in zip(names, figures, strict=True)}


def _cell(measured: Mapping[tuple[str, str, str], float], key: Sequence[str]) -> str:
    what, task, scale = key
    value = measured.get((what, task, scale))
    return MISSING if value is None else format_number(value)


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
        "EMTC's paper, EMU",
        "Training waits while the embedder is refitted (Algorithm 1).",
        "So it does, unless `embed.overlap = on`: then a frozen copy is fitted on a second core while training goes "
        "on, as the fit takes most of a refit's time. Its weights come into effect at the next refit step and not "
        "before, so every node is embedded by weights one `embed.interval` older; rows are the same on any machine.",
    ),
    Difference(
        "EMU's memory",
        "Where a node was evicted after the tree was built, whatever stands in its place is tested.",
        "That is a miss.",
    ),
)


def show_differences() -> None:
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


COMMAND = "python -m tests.reference.coverage --json"
_HOW = """
A level is named only by an interval that holds it with as few seeds as are trained here. A seed is the only unit: its
episodes are averaged first.

- **Numbers of any unit**: Student's t around the mean; Yuen's t around the interquartile mean, with the winsorised
  variance; around the median t with the variance that a median has in a normal population.
- **Shares** (win rates, μ̄_w): Wilson's score interval with the quantile of Student's t. The number of episodes follows
  from the spread between seeds, with at most 8 episodes per seed: five seeds that won all of 160 episodes each are
  100 % [84, 100]. Without this limit the interval is far too narrow if some seeds get stuck and none of them was drawn.
- **Median of shares**: t, clipped to [0, 1].
- **Difference of two variants**: t of the differences of equal seeds, Welch's t where the seeds differ; never narrower
  than the number of episodes allows. It fails if one seed in five of one variant gets stuck and none was drawn.
  **Probability of improvement**: the Mann-Whitney statistic with the variance of Hanley and McNeil (Newcombe 2006), and
  Student's t.
- **Performance profiles** and **one evaluation** on Live: Wilson's, of so many runs and of so many episodes.
- **Numbers of an embedding**: percentile bootstrap over whole episodes, of which a memory has many.

The **percentile bootstrap** over seeds can still be chosen, under its own name.
"""
_NAMES = {
    "mean": "mean", "iqm": "interquartile mean", "median": "median", "difference": "difference of two means",
    "improvement": "probability of improvement", "profile": "performance profile", "wilson": "one evaluation",
    "episodes": "numbers of an embedding", "bootstrap-mean": "mean, percentile bootstrap",
    "bootstrap-iqm": "interquartile mean, percentile bootstrap", "bootstrap-median": "median, percentile bootstrap",
}  # fmt: skip
_DATA = {
    "normal": "normal", "piled": "piled up at 1", "half": "half of them at 1", "skewed": "Beta(1.8, .2)",
    "stuck": "one seed in five stuck",
}  # fmt: skip
_SIZES = ("3", "5", "10")


def show_intervals() -> None:
    """Explain the intervals, and show what each was measured to cover."""
    st.markdown(_HOW)
    st.markdown("##### Measured: how often the interval holds the truth [%]")
    measured = read_coverage()
    pairs = [(what, data) for what in _NAMES for data in _DATA if any((what, data) == key[:2] for key in measured)]
    rows = []
    for what, data in pairs:
        cells = {n: f"{measured[key]:.1f}" for key in measured if key[:2] == (what, data) for n in [key[2]]}
        others = ", ".join(f"{text} (n = {n})" for n, text in cells.items() if n not in _SIZES)
        rows.append([_NAMES[what], _DATA[data], *(cells.get(n, "") for n in _SIZES), others])
    head = ("Interval of", "Data", *(f"{n} seeds" for n in _SIZES), "n episodes")
    st.markdown(write_table(head, rows))
    st.caption(
        f"`{COMMAND}`: simulated tables, 10,000 for each mean, interquartile mean and median, 2,000 for most others. "
        "Normal: N(0, 1). Piled up at 1: each seed wins 16 episodes with a probability drawn from Beta(9, 1), so that "
        "36 % win all. Half of them at 1: min(1, N(1, 0.1)). Beta(1.8, .2): the same with 160 episodes, as many as a "
        "final win rate has. One seed in five stuck: it wins 40 % of 160 episodes, the others win all. Two variants: "
        "normal with means .7 and .5 and a standard deviation of .1; two equal populations; or a variant that wins "
        f"all against one of which one seed in five is stuck. {BOOTSTRAP_COVERAGE}"
    )


@cache
def read_coverage() -> Mapping[tuple[str, str, str], float]:
    """Read the shares [%]: (interval, data, n) → tables whose interval held the truth."""
    return _read_figures("coverage.json")
