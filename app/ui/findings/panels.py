"""The page Findings: the answer of a study in one sentence, win rates by task, and the verdict on each claim.

A claim is a statement of the paper about variants. A finding is the measured result of a claim, with a verdict.
Everything else of a study is below the line *Details* (`app.ui.findings.details`).
"""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from app.analysis.curves import Curves
from app.analysis.findings import ALL_TASKS, StudyFindings
from app.analysis.format import escape_markdown, write_minus_signs
from app.analysis.provenance import describe_runs
from app.analysis.significance import Verdict
from app.analysis.study_answer import answer_question
from app.analysis.tables import MISSING, Table
from app.figures.named.findings import (
    AGGREGATION,
    VERDICTS,
    compute_smoothing_window,
    count_study_runs,
    select_lines,
    summarize_lines,
)
from app.figures.options import Options
from app.figures.registry import TABLES, draw_chart
from app.ui import messages, view
from app.ui.findings import details, studies
from app.ui.findings.studies import StoredStudy
from app.ui.page_state import RUNS, Choice, Flag
from app.ui.widgets import canvas, pin, result_table

_PAGE: Final = "findings"
_STUDY: Final = Choice("study", _PAGE)
_SHOWS_ESTIMATES: Final = Flag("estimates", _PAGE)
_PANEL_HEIGHT: Final = 230
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
    runs = studies.read_runs(study)
    st.caption(escape_markdown(f"{study.plan.question} {count_study_runs(runs)}."))
    with st.spinner("Comparing the variants seed by seed …"):
        results = studies.measure_claims(study)
    st.markdown(f"### {escape_markdown(answer_question(results))}")
    curves_by_task = studies.read_win_rates(study)
    with messages.guarded():
        _show_charts(curves_by_task, study)
    with messages.guarded():
        _show_claims(results, tasks=[curves.tasks[0] for curves in curves_by_task])
    details.show(study, results)


def _select_study(all_studies: list[StoredStudy]) -> StoredStudy:
    if len(all_studies) == 1:
        return all_studies[0]
    by_title = {study.plan.title: study for study in all_studies}
    title = st.segmented_control("Study", **_STUDY.bind(list(by_title)), required=True, label_visibility="collapsed")
    return by_title[str(title)]


def _show_charts(curves_by_task: Sequence[Curves], study: StoredStudy) -> None:
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
    canvas.show(chart, key=key, panel_height=_PANEL_HEIGHT, bands="pointed")
    st.caption(escape_markdown(summarize_lines(lines)), help=escape_markdown(chart.caption))
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


def _show_claims(results: StudyFindings, *, tasks: Sequence[str]) -> None:
    """Draw one line for each claim with its verdict on each task, and the estimates, which are folded."""
    table = TABLES["claims"].tabulate([results], Options())
    verdicts = {finding.verdict for finding in results.findings}
    rules = [f"**{verdict}**: {escape_markdown(rule)}" for verdict, rule in VERDICTS.items() if verdict in verdicts]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.subheader("Claims", width="content", help="  \n".join(rules) or None)
        result_table.download(table, key="claims", stem="claims")
    if not len(table):
        messages.empty("No claim has been measured yet.", "A claim needs a finished run of each of its variants.")
        return
    with st.container(key="findings_claims"):
        st.markdown(_write_verdicts(results, tasks))
    estimates = st.expander(
        "Estimates with 95 % intervals, n and p values", icon=":material/functions:", **_SHOWS_ESTIMATES.bind()
    )
    if estimates.open:
        with estimates, st.container(key="findings_estimates"):
            st.markdown(_write_estimates(table))


def _write_verdicts(results: StudyFindings, tasks: Sequence[str]) -> str:
    """Write the verdicts as Markdown: one line for each claim, one column for each task.

    A claim about several pairs of variants has one line for each pair.
    """
    badges: dict[tuple[str, str], dict[str, str]] = {}  # claim and pair → task → badge
    for finding in results.findings:
        if finding.verdict is None:
            continue
        claim = f"{finding.claim.number}. {finding.claim.text}"
        compared = f"{finding.first} − {finding.second}" if finding.second else finding.first
        pair = _keep_hyphens(compared) if len(finding.claim.pairs) > 1 else ""
        has_several_commits = len(finding.commits) > 1
        text = f"{finding.verdict} (different commits)" if has_several_commits else finding.verdict
        badges.setdefault((claim, pair), {})[finding.task] = _write_badge(text)
    has_pooled = any(ALL_TASKS in by_task for by_task in badges.values())
    columns = [*tasks, ALL_TASKS] if has_pooled else tasks
    rows = [
        [f"{escape_markdown(claim)}: :gray[{pair}]" if pair else escape_markdown(claim)]
        + [by_task.get(task, MISSING) for task in columns]
        for (claim, pair), by_task in badges.items()
    ]
    return result_table.write_table(["claim", *map(_break_long_name, columns)], rows)


def _write_estimates(table: Table) -> str:
    """Write the claims as Markdown, with fewer columns than in files, so that the verdict fits on the screen.

    The column "detectable" is the smallest difference that a test with this number of seeds detects.
    """
    cells: dict[str, list[str]] = {"claim": [], "task": [], "estimate": [], "verdict": []}
    for row in table.frame.to_dict("records"):
        pair = _keep_hyphens(row["compared"])
        cells["claim"].append(f"**{escape_markdown(row['claim'])}** {pair}, {escape_markdown(row['measure'])}")
        cells["task"].append(_break_long_name(row["task"]))
        cells["estimate"].append(escape_markdown(write_minus_signs(row["estimate"])).replace(", ", ",\u00a0"))
        verdict = _write_badge(row["verdict"])
        detectable = row.get("detectable", MISSING)
        if detectable != MISSING:
            verdict += f" :small[detectable: {detectable}]"
        cells["verdict"].append(verdict)
    titles = ["claim", "task", "estimate", "n", "p (Holm)", "verdict"]
    return result_table.to_markdown(table, titles=titles, markdown_cells=cells)


def _keep_hyphens(names: str) -> str:
    """Write names of variants as Markdown, without a line break at a hyphen, as in "No-TCGM"."""
    return escape_markdown(names).replace(r"\-", "\u2011")


def _break_long_name(task: str) -> str:
    """Allow a line break after each underscore of a long name, with a zero-width space."""
    text = escape_markdown(task)
    if len(task) > _MIN_LENGTH_TO_BREAK:
        return text.replace(r"\_", "\\_\u200b")
    return text


def _write_badge(text: str) -> str:
    """Write a verdict, with the text that may follow it, as a colored badge with an icon."""
    icon, color = next(style for verdict, style in _VERDICT_STYLES.items() if text.startswith(verdict))
    return f":{color}-badge[:material/{icon}: {escape_markdown(text)}]"
