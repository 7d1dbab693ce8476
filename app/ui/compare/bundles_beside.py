"""Which open bundles stand beside one's own runs? None until somebody ticks one; the URL's `with` names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import in_url, state, view
from app.ui.compared import runs_beside
from storage.queries.run_table import RunFilter

_PAGE = "compare"


@dataclass(frozen=True)
class Beside:
    """Runs of the ticked bundles, by `id@key`."""

    every: dict[str, str] = field(default_factory=dict)
    """Those that match the filters, with their names."""
    evaluated: list[str] = field(default_factory=list)
    words: str = ""

    def without(self, chosen: Sequence[str]) -> list[str]:
        """List the evaluated ones of those bundles of which no run was chosen."""
        named = view.split(chosen).keys()
        return [run_id for run_id in self.evaluated if not view.split([run_id]).keys() & named]


def ask(wanted: RunFilter) -> Beside:
    """Offer the open bundles; where there is none, or where one is looked at itself, nothing is drawn."""
    bundles = {bundle.key: bundle for bundle in view.bundles()}
    if not bundles or view.bundle() is not None:
        return Beside()
    ticked = st.multiselect(
        "Beside mine",
        **in_url.several(_PAGE, view.WITH, list(bundles)),
        format_func=lambda key: bundles[key].name if key in bundles else "no longer open",
        placeholder="a bundle",
        help="Runs of a bundle are lines of their own, marked with its name; they never join the seeds of yours.",
        width=220,
    )
    shown = [bundles[key] for key in ticked if key in bundles]
    every: dict[str, str] = {}
    evaluated: list[str] = []
    for bundle in shown:
        every |= runs_beside(bundle, wanted)
        evaluated += runs_beside(bundle, replace(wanted, evaluated=True, shelf="drawn"))
    names = ", ".join(escape_markdown(bundle.name) for bundle in shown)
    return Beside(every, evaluated, f" Beside them {len(evaluated):,} of {names}." if shown else "")


def forget() -> None:
    """Tick none any more."""
    st.session_state.pop(f"{_PAGE}-{view.WITH}", None)
    state.write_list(view.WITH, [])
