"""The part *Details* of the page Findings: runs, measures, tests, all results, settings, plan, and links.

A claim is a statement of the paper about variants. A finding is the measured result of a claim, with a verdict.
"""

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.analysis.findings import StudyFindings
from app.analysis.format import escape_markdown
from app.analysis.tables import MISSING, Table
from app.figures.named.findings import VERDICTS, describe_study_runs
from app.figures.options import Options
from app.figures.registry import TABLES
from app.ui import guide, messages, view
from app.ui.findings import studies
from app.ui.findings.studies import StoredStudy
from app.ui.page_state import RUNS, SWEEP, Flag
from app.ui.widgets import result_table

_PAGE: Final = "findings"
_SHOWS_DETAILS: Final = Flag("details", _PAGE)
_SHOWS_FINDINGS: Final = Flag("measures", _PAGE)
_SHOWS_RUN_MEASURES: Final = Flag("numbers", _PAGE)
_SHOWS_SETTINGS: Final = Flag("settings", _PAGE)
_SHOWS_PLAN: Final = Flag("plan", _PAGE)
_PARTS: Final = (_SHOWS_FINDINGS, _SHOWS_RUN_MEASURES, _SHOWS_SETTINGS, _SHOWS_PLAN)


def show(study: StoredStudy, results: StudyFindings) -> None:
    """Draw the closed expander *Details*. A link to one of its parts opens it."""
    if any(part.read() for part in _PARTS):
        _SHOWS_DETAILS.write(True)
    box = st.expander("Details", icon=":material/more_horiz:", **_SHOWS_DETAILS.bind(_close_parts))
    if not box.open:
        return
    with box, messages.guarded():
        st.caption(escape_markdown(describe_study_runs(results)))
        _show_missing_runs(results.missing)
        _show_postponed_parts(study)
        with st.expander("Measures, tests, verdicts", icon=":material/function:"):
            st.caption(escape_markdown(TABLES["claims"].tabulate([results], Options()).caption))
            st.caption("\n".join(f"- **{verdict}**: {escape_markdown(rule)}" for verdict, rule in VERDICTS.items()))
        _show_parts(study, results)
        _show_links(study)


def _close_parts() -> None:
    """Remove the parts from the URL when *Details* is closed; otherwise they would open it again."""
    if not _SHOWS_DETAILS.read():
        for part in _PARTS:
            part.write(None)


def _show_missing_runs(missing: Sequence[str]) -> None:
    """List the planned runs without a result; fold a long list."""
    if not missing:
        return
    runs = "run" if len(missing) == 1 else "runs"
    title = f"{len(missing)} planned {runs} without a result"
    text = "\n".join(f"- {escape_markdown(run)}" for run in missing)
    if len(missing) <= result_table.MAX_UNFOLDED:
        st.caption(f"{title}\n{text}")
    else:
        with st.expander(title, icon=":material/pending:"):
            st.caption(text)


def _show_postponed_parts(study: StoredStudy) -> None:
    """List the postponed parts of the plan, with day and reason."""
    if not study.plan.postponed:
        return
    with st.expander("Postponed parts of the plan", icon=":material/event_busy:"):
        lines = [f"{part.what}, postponed on {part.when}: {part.why}" for part in study.plan.postponed]
        st.caption("\n".join(f"- {escape_markdown(line)}" for line in lines))


def _show_parts(study: StoredStudy, results: StudyFindings) -> None:
    findings_box = st.expander("Results of all claims", icon=":material/table_rows:", **_SHOWS_FINDINGS.bind())
    measures_box = st.expander("Measures of each run", icon=":material/numbers:", **_SHOWS_RUN_MEASURES.bind())
    settings_box = st.expander("Settings that differ", icon=":material/difference:", **_SHOWS_SETTINGS.bind())
    plan_box = st.expander("Study plan", icon=":material/assignment:", **_SHOWS_PLAN.bind())
    if findings_box.open:
        with findings_box, messages.guarded():
            table = TABLES["findings"].tabulate([results], Options())
            _show_table(table, _make_findings_frame(table, results), key="findings")
    if measures_box.open:
        with measures_box, messages.guarded():
            with st.spinner("Measuring every run …"):
                table = studies.tabulate(study, "study-measures")
            frame = result_table.make_number_frame(table)
            frame["run"] = [view.link_run(run_id, run_id) for run_id in frame["run"]]
            _show_table(table, frame, key="study-measures")
    if settings_box.open:
        with settings_box, messages.guarded():
            table = studies.tabulate(study, "study-settings")
            _show_table(table, table.frame, key="study-settings")
    if plan_box.open:
        with plan_box, messages.guarded():
            _, _, text = study.plan.read_plan_text().partition("\n")
            st.markdown(text)  # without the first line, the title


def _make_findings_frame(table: Table, results: StudyFindings) -> pd.DataFrame:
    """Replace the texts of numbers by numbers, so that the page sorts them as numbers."""
    frame = result_table.make_number_frame(table)
    differences = [finding.difference for finding in results.findings]
    frame["p"] = [difference.p for difference in differences]
    frame["p (Holm)"] = [finding.adjusted_p for finding in results.findings]
    frame["p (randomization)"] = [difference.randomization_p for difference in differences]
    frame["detectable"] = [difference.detectable_difference for difference in differences]
    frame["P(improvement)"] = [finding.improvement for finding in results.findings]
    return frame


def _show_table(table: Table, frame: pd.DataFrame, *, key: str) -> None:
    """Draw the rows, their caption, and the downloads of the table.

    Args:
        table: The table.
        frame: Its rows as the page shows them.
        key: Key of the rows and name of the files.
    """
    with st.container(horizontal=True, horizontal_alignment="right"):
        result_table.download(table, key=key, stem=key)
    columns: dict[str, Any] = {
        name: st.column_config.NumberColumn(format="%.3g") for name in frame.select_dtypes("float").columns
    }
    columns["run"] = st.column_config.LinkColumn(display_text=view.LINK_TEXT_PATTERN, help="Opens the run in a new tab")
    st.dataframe(frame, hide_index=True, key=f"{key}-table", column_config=columns, placeholder=MISSING)
    st.caption(escape_markdown(table.caption))


def _show_links(study: StoredStudy) -> None:
    evaluated = [row.id for row in study.rows if row.win_rate is not None]
    with st.container(horizontal=True, gap="medium"):
        if evaluated:
            st.page_link(
                "../pages/compare.py", label="Compare these runs", icon=":material/stacked_line_chart:",
                query_params=view.add_bundle({RUNS.name: ",".join(evaluated)}),
            )  # fmt: skip
        for sweep_id, name in study.sweeps.items():
            st.page_link(
                "../pages/sweeps.py", label=escape_markdown(name), icon=":material/grid_on:",
                query_params=view.add_bundle({SWEEP.name: sweep_id}), help="Progress and runs of this sweep",
            )  # fmt: skip
        st.page_link(
            "../pages/guide.py", label="Findings in the guide", icon=":material/help:",
            query_params=view.add_bundle({guide.PAGE.name: "findings"}),
        )  # fmt: skip
