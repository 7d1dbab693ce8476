"""A student's day in a browser and a shell: the example study, a sweep of four runs, and a paper of two pages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage.engine import open_database
from tests.browser.server import running_app
from tests.process.trainers import EMTC, emtc, environment
from tests.require import require_latex

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

SWEEP = """
name = "Ablation"
map = "3m"
algo = "emtc-qplex"
steps = 800
seeds = 2

[set]
train.burn_in = 8
train.batch = 8
train.eps_steps = 100
eval.interval = 250
eval.episodes = 4

[[variant]]
name = "EMTC"

[[variant]]
name = "No-TCGM"
set = { gate.enabled = false }
"""
INTERVAL = re.compile(r"\[[−-]?\d[\d.]*,\s")
VERDICT = re.compile("identical runs|too few seeds|equal in every")
PAPER = r"""\documentclass[twocolumn]{article}
\usepackage[margin=0.75in]{geometry}
\usepackage{booktabs,graphicx,siunitx}
\setlength{\columnsep}{0.25in}
\begin{document}
\section{Ablation}
\begin{figure}[t]\includegraphics{curves.pdf}\caption{Learning curves.}\end{figure}
\begin{table*}[t]\centering\caption{Final win rates [\%].}
\input{win-rates.tex}
\end{table*}
\begin{table*}[t]\centering\caption{Comparisons.}
\input{comparisons.tex}
\end{table*}
The parts of the method are compared on 3m.
\end{document}
"""
EXECUTE = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        expression = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if expression:
            assert eval(compile(ast.Expression(expression.value), "cell", "eval"), names).data
            print("shown")
"""
"""Runs the cells of a notebook as Jupyter does: the value of an expression at the end of a cell is shown."""


def run(folder: Path, *command: str, **env: str) -> str:
    variables = environment() | env
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def write_paper(folder: Path, database: str, sweep_id: str) -> str:
    """Export a figure of one column and two tables, and compile the paper; return the text of the PDF."""

    def export(file: str, *options: str) -> None:
        done = emtc("export", "--sweep", sweep_id, "--db", database, *options, "--out", str(folder / file))
        assert done.returncode == 0, done.stderr

    export("curves.pdf", "--figure", "learning-curves", "--width", "3.25in", "--no-title")
    for table in ("win-rates", "comparisons"):
        export(f"{table}.tex", "--table", table, "--format", "latex")
    (folder / "paper.tex").write_text(PAPER)
    log = run(folder, "pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "paper.tex")
    assert "Overfull" not in log, "the figure fits into a column and the tables into the width of the text"
    return run(folder, "pdftotext", "-layout", "paper.pdf", "-")


def test_a_day_from_the_example_study_to_a_paper(page, tmp_path: Path) -> None:
    require_latex()
    path = tmp_path / "own.db"
    database = f"sqlite:///{path}"
    open_database(database).dispose()
    (tmp_path / "ablation.toml").write_text(SWEEP)
    with running_app(path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as url:
        page.goto(url)
        page.get_by_role("button", name="Open the example study").click()
        page.get_by_text("Estimates with 95 % intervals").click()
        claims = page.locator(".st-key-findings_estimates tr", has_text="1. EMTC learns better than EMU")
        claims.filter(has_text=INTERVAL).filter(has_text="too few seeds").first.wait_for()

        result = json.loads(run(tmp_path, *EMTC, "sweep", "ablation.toml", "--jobs", "2", "--db", database, "--json"))
        assert [run["status"] for run in result["runs"]] == ["finished"] * 4

        back = page.get_by_role("button", name="Back to my own runs")
        back.click()
        back.wait_for(state="detached")
        page.get_by_role("link", name="Sweeps", exact=True).click()
        page.locator("summary", has_text="Final win rates and differences").click()
        other = page.get_by_role("row", name="EMTC(QPLEX), No-TCGM")
        other.filter(has_text="2 pairs").filter(has_text=VERDICT).wait_for()
        page.get_by_role("link", name="Open in Compare").click()
        page.locator(".curves canvas").first.wait_for()
        page.get_by_role("button", name="Pin").first.click()
        page.get_by_label("Title").fill("Ablation")
        page.get_by_role("button", name="Pin to notebook").click()
        page.get_by_role("link", name="Open the notebook").first.wait_for()

    text = write_paper(tmp_path, database, result["sweep_id"])
    assert text.count("\f") == 2
    for expected in ("verdict", "EMTC(QPLEX), No-TCGM", "env steps", "(2 seeds)", "2 pairs"):
        assert expected in text, expected
    notebook = tmp_path / "day.ipynb"
    exported = emtc("notebook", "export", "--out", str(notebook), "--db", database)
    assert exported.returncode == 0, exported.stderr
    assert run(tmp_path, sys.executable, "-c", EXECUTE, notebook.name, EMTC_DB=database).splitlines() == ["shown"]
