"""Which runs are compared? Filters, a free search and a choice; all of it stands in the URL."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from app import data, messages, state
from app.results.settings import matches_settings

MOST = 200
_KEY = "compare_runs"


def show() -> list[str]:
    """Draw the filters and the choice; return the ids of the runs to compare, newest first. Ends an empty page."""
    frame = data.run_list(limit=None)
    if frame.empty:
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
        st.stop()
    frame = _filter(frame)
    chosen = _choose(frame)
    with_curve = frame.loc[frame["win_rate"].notna(), :]
    ids = chosen or [str(run_id) for run_id in with_curve["id"]]
    if not chosen:
        st.caption(_summary(len(ids), len(frame)))
    return ids[:MOST]


def _summary(compared: int, matching: int) -> str:
    without = f" {matching - compared} more have no evaluation yet." if matching > compared else ""
    if compared > MOST:
        return f"Comparing the newest {MOST} of {compared:,} runs that match. Narrow the filters or choose runs."
    return f"Comparing all {compared} evaluated runs that match.{without}"


def _filter(frame: pd.DataFrame) -> pd.DataFrame:
    places = [*st.columns(3), *st.columns(3)]
    keep = pd.Series(data=True, index=frame.index)
    columns = (("Environment", "envs", "env"), ("Map", "maps", "map"), ("Algorithm", "algos", "algo"))
    for place, (label, key, name) in zip(places, (*columns, ("Status", "states", "status")), strict=False):
        wanted = place.multiselect(
            label, sorted(frame[name].unique()), key=key, bind="query-params", placeholder="any", wrap=True
        )
        keep &= frame[name].isin(wanted) if wanted else True
    tags = sorted({tag for tags in frame["tags"] for tag in tags})
    wanted = set(places[4].multiselect("Tag", tags, key="tags", bind="query-params", placeholder="any"))
    keep &= pd.Series([not wanted or bool(wanted & set(tags)) for tags in frame["tags"]], index=frame.index)
    sought = places[5].text_input(
        "Find",
        key="q",
        bind="query-params",
        placeholder="word, or gate.enabled=false",
        help="Words of name, id, notes and tags; a setting as `key=value`. All of them must match.",
    )
    found = frame.loc[keep, :]
    return found.loc[_find(found, (sought or "").split()), :]


def _find(frame: pd.DataFrame, words: list[str]) -> pd.Series:
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word.lower() for word in words if "=" not in word]
    texts = [" ".join([row["name"], row["id"], row["notes"], *row["tags"]]).lower() for row in data.rows_of(frame)]
    keep = pd.Series([all(word in text for word in plain) for text in texts], index=frame.index, dtype=bool)
    if not settings:
        return keep
    configs: Mapping[str, Mapping[str, Any]] = data.configs(frame["id"].tolist())
    return keep & pd.Series([matches_settings(configs[run_id], settings) for run_id in frame["id"]], frame.index, bool)


def _choose(frame: pd.DataFrame) -> list[str]:
    """Let runs be chosen one by one; the URL's `runs` decides, full ids or beginnings of them."""
    every = data.run_list(limit=None)
    names = {str(row["id"]): f"{row['name']} · {row['id']}" for row in data.rows_of(every)}
    wanted = state.read_list(state.RUNS)
    chosen = [run_id for text in wanted for run_id in names if run_id.startswith(text.lower())]
    chosen = list(dict.fromkeys(chosen))
    lost = [text for text in wanted if not any(run_id.startswith(text.lower()) for run_id in names)]
    if lost:
        st.warning(f"{len(lost)} of the runs in this link are not in the database.", icon=":material/link_off:")
    st.session_state[_KEY] = chosen
    st.multiselect(
        "Runs",
        list(dict.fromkeys([*chosen, *(str(run_id) for run_id in frame["id"])])),
        key=_KEY,
        format_func=lambda run_id: names.get(run_id, str(run_id)),
        on_change=_chosen,
        placeholder="Every evaluated run that matches; or choose some",
        help="Runs that differ in nothing but their seed become one line.",
    )
    return chosen


def _chosen() -> None:
    state.write_list(state.RUNS, st.session_state.get(_KEY, []))


def choose(run_ids: list[str]) -> None:
    """Compare exactly these runs from now on."""
    state.write_list(state.RUNS, run_ids)
