"""What was measured with this program: the output of its own commands, as it was written.

Tables of the Method page: Markdown, whose text wraps and can be searched in the browser.

How a baseline's settings compare with what its authors published, with a reason for each difference.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import streamlit as st

from app.analysis.format import MISSING, escape_markdown, number
from emtc_core.config.published import Case, compare, find_configuration, read_table
from emtc_core.config.resolve import Value


def show(algo: str, env: str, map: str) -> None:
    """List every difference of a baseline's preset `paper` from the published configuration."""
    st.markdown(f"##### {escape_markdown(algo)}, as published and as compared here")
    case = Case(algo, env, map)
    rows = list_differences(case)
    if not rows:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Where", "Why"), rows))
    st.caption(escape_markdown(describe(case)))


def list_differences(case: Case) -> list[tuple[str, ...]]:
    """List what differs: key, ours, theirs, repository and file, reason; empty where nothing is published."""
    return [
        (
            f"`{row.key}`",
            f"`{_plain(row.ours)}`",
            f"`{_plain(row.published)}`",
            escape_markdown(row.source),
            escape_markdown(row.why),
        )
        for row in compare(case).differences
    ]


def describe(case: Case) -> str:
    """How many published values were compared, and of which commits."""
    known, table, rows = find_configuration(case), read_table(), compare(case).compared
    used = dict.fromkeys(table.file[name].repository for name in known.files) if known else {}
    commits = ", ".join(f"{table.repository[name].name} at {table.repository[name].commit}" for name in used)
    equal = sum(not row.why for row in rows)
    told = f"{equal} of {len(rows)} published values are the same here, the rest is listed: {commits}."
    return f"{told} {known.note}" if known and known.note else told


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    text = (files("app.bench") / "measured" / "embedding.json").read_text()
    parts = {figure["name"]: figure["value"] for figure in json.loads(text)["figures"]}
    return {_split(name): value for name, value in parts.items()}


def _split(name: str) -> tuple[str, str, str]:
    _, what, map, scale = name.split(".")
    return what, map, scale


def _cell(measured: Mapping[tuple[str, str, str], float], key: Sequence[str]) -> str:
    what, task, scale = key
    value = measured.get((what, task, scale))
    return MISSING if value is None else number(value)
