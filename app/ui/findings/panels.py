"""The page Findings: the question of a study, win rates by task, the table of claims, and the tables of details.

A claim is a statement of the paper about variants. A finding is the measured result of a claim, with a verdict.
"""

from typing import Final

import streamlit as st

from app.analysis.curves import Curves
from app.analysis.format import escape_markdown
from app.analysis.provenance import describe_runs
from app.analysis.significance import Verdict
from app.analysis.study_plans import StudyPlan
from app.analysis.tables import MISSING, Table
from app.figures.named.findings import (
    AGGREGATION,
    VERDICTS,
    compute_smoothing_window,
    describe_study_runs,
    select_lines,
)
from app.figures.options import Options
from app.figures.registry import TABLES, draw_chart
from app.ui import guide, messages, view
from app.ui.findings import studies
from app.ui.findings.studies import StoredStudy
from app.ui.page_state import RUNS, SWEEP, Choice, Flag
from app.ui.widgets import canvas, pin, result_table

_PAGE: Final = "findings"
_STUDY: Final = Choice("study", _PAGE)
_SHOWS_FINDINGS: Final = Flag("measures", _PAGE)
_SHOWS_RUN_MEASURES: Final = Flag("numbers", _PAGE)
_SHOWS_SETTINGS: Final = Flag("settings", _PAGE)
_SHOWS_PLAN: Final = Flag("plan", _PAGE)
_PANEL_HEIGHT: Final = 280
_MIN_LENGTH_TO_BREAK: Final = 12
"""A task name that is longer may be broken into two lines [characters]."""
_VERDICT_STYLES: Final[dict[Verdict, tuple[str, str]]] = {
    "supported": ("check_circle", "green"),
    "contradicted": ("cancel", "red"),
    "no relevant difference": ("drag_handle", "blue"),
    "cannot tell": ("question_mark", "orange"),
    "too few seeds": ("hourglass_empty", "gray"),
    "equal": ("equal", "blue"),
}
"""Verdict → icon and color. A verdict answers whether the runs support a claim."""


def show() -> None:
    """Draw one study. If there are several, the URL selects it."""
    all_studies = studies.list_studies()
    if not all_studies:
        messages.empty(
            "No study has runs in this database.",
            "Press *Open the example study* on Guide, or train a study: `emtc sweep confirmatory-football`.",
            page="../pages/home.py",
            label="Go to Home",
        )
        return
    study = _select_study(all_studies)
    st.markdown(f"**{escape_markdown(study.plan.question)}**")
    st.caption(escape_markdown(describe_study_runs(studies.read_runs(study))))
    with messages.guarded():
        _show_charts(studies.read_win_rates(study), study)
    with messages.guarded():
        _show_claims(study)
    with messages.guarded():
        _show_details(study)
    _show_links(study)


def _select_study(all_studies: list[StoredStudy]) -> StoredStudy:
    if len(all_studies) == 1:
        return all_studies[0]
    by_title = {study.plan.title: study for study in all_studies}
    title = st.segmented_control("Study", **_STUDY.bind(list(by_title)), required=True)
    return by_title[str(title)]


def _show_charts(curves_by_task: list[Curves], study: StoredStudy) -> None:
    if not curves_by_task:
        messages.empty(
            "No run of this study has been evaluated yet.", "The charts appear after the first evaluation of a run."
        )
        return
    with st.container(key="findings_charts", horizontal=True, gap="medium"):
        for curves in curves_by_task:
            with st.container(gap="xsmall"):
                _show_chart(curves, study)


def _show_chart(curves: Curves, study: StoredStudy) -> None:
    """Draw the win rates of one task, with their buttons."""
    lines = select_lines(curves, study.plan)  # only the variants of the claims; `others` are on Compare
    chart = draw_chart("study-win-rates", [lines])
    task = curves.tasks[0]
    smoothing_window = compute_smoothing_window(lines.in_chart)  # [env steps]
    quantity = curves.measure.key
    rows_by_id = {row.id: row for row in study.rows}
    runs = [rows_by_id[run_id] for run_id in lines.in_chart.run_ids]
    key = f"findings-{task}"
    pinned_values = {
        "quantity": quantity,
        "center": AGGREGATION.center,
        "band": AGGREGATION.band,
        "smooth": smoothing_window,
    }
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"#### {escape_markdown(task)}", width="content")
        with st.container(horizontal=True, width="content", gap="small"):
            pin.show_export(chart, key=key, stem=runs[0].map, sources=describe_runs(runs))
            pin.show(chart, key=key, page=_PAGE, run=runs, facts=pinned_values)
    canvas.show(chart, key=key, panel_height=_PANEL_HEIGHT)
    st.caption(escape_markdown(chart.caption))
    if lines.others:
        compare_settings = {
            RUNS.name: ",".join(curves.run_ids),
            "y": quantity,
            "band": AGGREGATION.band,
            "smooth": str(smoothing_window),
        }
        st.page_link(
            "../pages/compare.py",
            label=f"Compare all {len(curves.by_variant)} variants",
            icon=":material/stacked_line_chart:",
            query_params=view.add_bundle(compare_settings),
        )


def _show_claims(study: StoredStudy) -> None:
    with st.spinner("Comparing the variants seed by seed …"):
        results = studies.measure_claims(study)
    table = TABLES["claims"].tabulate([results], Options())
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader("Claims", width="content")
        result_table.download(table, key="claims", stem="claims")
    if len(table):
        with st.container(key="findings_claims"):
            st.markdown(_write_claims(table))
        _show_verdict_rules({finding.verdict for finding in results.findings})
    else:
        messages.empty("No claim has been measured yet.", "A claim needs a finished run of each of its variants.")
    _show_missing_runs(results.missing)
    _show_postponed_parts(study.plan)
    with st.expander("Measures, tests, verdicts", icon=":material/function:"):
        st.caption(escape_markdown(table.caption))
        st.caption("\n".join(f"- **{verdict}**: {escape_markdown(rule)}" for verdict, rule in VERDICTS.items()))


def _show_verdict_rules(verdicts: set[Verdict | None]) -> None:
    """Show a badge for each of these verdicts, with its rule as tooltip."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption("Meaning of the verdicts", width="content")
        for verdict, rule in VERDICTS.items():
            if verdict in verdicts:
                icon, color = _VERDICT_STYLES[verdict]
                st.badge(verdict, icon=f":material/{icon}:", color=color, help=rule)  # type: ignore[arg-type]


def _write_claims(table: Table) -> str:
    """Write the claims as Markdown, with fewer columns than in files, so that the verdict fits on the screen.

    The column "detectable" is the smallest difference that a test with this number of seeds detects.
    """
    cells: dict[str, list[str]] = {"claim": [], "task": [], "estimate": [], "verdict": []}
    for row in table.frame.to_dict("records"):
        pair = escape_markdown(row["compared"]).replace(r"\-", "\u2011")  # hyphen without line break, as in "No-TCGM"
        cells["claim"].append(f"**{escape_markdown(row['claim'])}** {pair}, {escape_markdown(row['measure'])}")
        cells["task"].append(_break_long_name(row["task"]))
        cells["estimate"].append(escape_markdown(row["estimate"]).replace(", ", ",\u00a0"))
        verdict = _write_verdict(row["verdict"])
        detectable = row.get("detectable", MISSING)
        if detectable != MISSING:
            verdict += f" :small[detectable: {detectable}]"
        cells["verdict"].append(verdict)
    titles = ["claim", "task", "estimate", "n", "p (Holm)", "verdict"]
    return result_table.to_markdown(table, titles=titles, markdown_cells=cells)


def _break_long_name(task: str) -> str:
    """Allow a line break after each underscore of a long name, with a zero-width space."""
    text = escape_markdown(task)
    if len(task) > _MIN_LENGTH_TO_BREAK:
        return text.replace(r"\_", "\\_\u200b")
    return text


def _write_verdict(text: str) -> str:
    """Write a verdict, with the text that may follow it, as a colored badge with an icon."""
    icon, color = next(style for verdict, style in _VERDICT_STYLES.items() if text.startswith(verdict))
    return f":{color}-badge[:material/{icon}: {escape_markdown(text)}]"


def _show_missing_runs(missing: tuple[str, ...]) -> None:
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


def _show_postponed_parts(plan: StudyPlan) -> None:
    """List the postponed parts of the plan, with day and reason."""
    if not plan.postponed:
        return
    with st.expander("Postponed parts of the plan", icon=":material/event_busy:"):
        lines = [f"{part.what}, postponed on {part.when}: {part.why}" for part in plan.postponed]
        st.caption("\n".join(f"- {escape_markdown(line)}" for line in lines))


def _show_details(study: StoredStudy) -> None:
    findings_box = st.expander("Results of all claims", icon=":material/table_rows:", **_SHOWS_FINDINGS.bind())
    measures_box = st.expander("Measures of each run", icon=":material/numbers:", **_SHOWS_RUN_MEASURES.bind())
    settings_box = st.expander("Settings that differ", icon=":material/difference:", **_SHOWS_SETTINGS.bind())
    plan_box = st.expander("Study plan", icon=":material/assignment:", **_SHOWS_PLAN.bind())
    if findings_box.open:
        with findings_box, messages.guarded():
            _show_table(TABLES["findings"].tabulate([studies.measure_claims(study)], Options()), key="findings")
    if measures_box.open:
        with measures_box, messages.guarded():
            with st.spinner("Measuring every run …"):
                table = studies.tabulate(study, "study-measures")
            _show_table(table, key="study-measures")
    if settings_box.open:
        with settings_box, messages.guarded():
            _show_table(studies.tabulate(study, "study-settings"), key="study-settings")
    if plan_box.open:
        with plan_box, messages.guarded():
            _, _, text = study.plan.read_plan_text().partition("\n")
            st.markdown(text)  # without the first line, the title


def _show_table(table: Table, *, key: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="right"):
        result_table.download(table, key=key, stem=key)
    st.dataframe(table.frame, hide_index=True, key=f"{key}-table")
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
