"""Tables: what a cell says, what is bold, and that every format can be read back."""

import io
import re

import numpy as np
import pandas as pd
import pytest

from app.comparison import default_times, group_curves
from app.results import parse_steps, quote, show_steps, tabulate_mu_w, tabulate_win_rates
from app.seed_statistics import Reading
from app.tables import best_cells, describe_table, export_table
from emtc_core.config.resolve import resolve


@pytest.fixture
def study() -> tuple[dict, pd.DataFrame]:
    """Two algorithms on 3m, one of them on 8m too, two seeds each; win rates ramp to their last value at step 400."""
    ends = {("emtc-qplex", "3m"): (1.0, 0.9), ("qmix", "3m"): (0.95, 0.95), ("qmix", "8m"): (0.5, 0.25)}
    configs, rows = {}, []
    for (algo, map), values in ends.items():
        for seed, last in enumerate(values, 1):
            run_id = f"{algo}-{map}-{seed}"
            configs[run_id] = resolve(algo=algo, map=map, seed=seed).model_dump(mode="json")
            rows += [(run_id, step, last * step / 400) for step in (0, 100, 400)]
    return configs, pd.DataFrame(rows, columns=["run_id", "env_step", "win_rate"])


def test_win_rates_stand_by_variant_and_map_and_ties_are_all_bold(study) -> None:
    configs, frame = study
    table = tabulate_win_rates(group_curves(configs, frame), configs, Reading())
    assert table.columns.tolist() == ["variant", "3m", "8m"]
    assert table["3m"].tolist() == ["95.0 ± 7.1 (n = 2 of 5)", "95.0 ± 0.0 (n = 2 of 5)"]
    assert table["8m"].tolist() == ["–", "37.5 ± 17.7 (n = 2 of 5)"]
    assert best_cells(table) == {(0, "3m"), (1, "3m"), (1, "8m")}
    assert "mean ± standard deviation over seeds" in table.attrs["caption"]


def test_mu_w_is_read_at_chosen_steps_and_only_where_a_seed_got_there(study) -> None:
    configs, frame = study
    frame = frame[~((frame["run_id"] == "qmix-3m-2") & (frame["env_step"] > 100))]
    table = tabulate_mu_w(group_curves(configs, frame), [100, 400, 500], Reading("mean", "none"))
    assert table.columns.tolist() == ["variant", "3m · 100", "3m · 400", "3m · 500", "8m · 100", "8m · 400", "8m · 500"]
    assert table["3m · 400"].tolist() == ["0.475 (n = 2)", "0.475 (n = 1)"]  # half of where the ramps end
    assert table["3m · 500"].tolist() == ["–", "–"]


def test_the_papers_steps_are_used_once_every_run_has_reached_them(study) -> None:
    configs, frame = study
    assert default_times(group_curves(configs, frame)) == [100, 200, 400]
    assert default_times(group_curves(configs, frame.assign(env_step=frame["env_step"] * 6000))) == [
        *(800_000, 1_600_000, 2_400_000),
    ]
    assert default_times([]) == []


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        (Reading("mean", "std"), "50.0 ± 39.5"),
        (Reading("mean", "se"), "50.0 ± 17.7"),
        (Reading("median", "iqr"), "50.0 [25.0–75.0]"),
        (Reading("mean", "minmax"), "50.0 [0.0–100.0]"),
        (Reading("mean", "ci"), "50.0 [20.0–80.0]"),
        (Reading("iqm", "none"), "50.0"),
    ],
)
def test_a_cell_quotes_its_statistic(reading, text) -> None:
    assert quote(np.array([0.0, 25.0, 50.0, 75.0, 100.0]), reading) == text
    assert quote(np.array([50.0]), reading) == "50.0"


def test_steps_are_written_as_in_the_paper() -> None:
    assert [show_steps(t) for t in (800_000, 2_400_000, 52_340)] == ["0.8M", "2.4M", "52,340"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [("0.8M, 1.6m,2.4M", [800_000, 1_600_000, 2_400_000]), ("50k;1200", [1200, 50_000]), ("ten", []), ("1,-2", [])],
)
def test_steps_are_read_as_people_write_them(text, steps) -> None:
    assert parse_steps(text) == steps


NASTY = "emtc_qplex (a & b = 50 %, {c} #1 $x$ ~ ^ \\\\ <d> τ)"


@pytest.fixture
def nasty() -> pd.DataFrame:
    frame = pd.DataFrame({"variant": [NASTY, "qmix"], "3m · 0.8M": ["0.9 ± 0.1", None], "3m · 1.6M": ["–", "0.5"]})
    return describe_table(frame, caption="mean ± std", best=[(0, "3m · 0.8M")])


def cells_of(row: str) -> list[str]:
    return re.split(r"(?<!\\)&", row.removesuffix(r"\\"))


def test_latex_is_balanced_escaped_bold_and_nested(nasty) -> None:
    lines = export_table(nasty, "latex").decode().splitlines()
    assert lines[0] == "% mean ± std"
    assert lines[1:3] == [r"\begin{tabular}{lll}", r"\toprule"]
    assert lines[3] == r" & \multicolumn{2}{c}{3m} \\"
    assert lines[4] == r"\cmidrule(lr){2-3}"
    rows = [line for line in lines[5:] if line.endswith(r"\\")]
    assert all(len(cells_of(row)) == 3 for row in rows)
    assert r"\textbf{0.9 $\pm$ 0.1}" in rows[1]
    assert rows[2] == r"qmix & -- & 0.5 \\"
    bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}", "", rows[1])
    assert not re.search(r"(?<!\\)[#_%]", bare)
    assert re.sub(r"\\[{}]", "", bare).count("{") == re.sub(r"\\[{}]", "", bare).count("}")
    assert r"$\tau$" in bare
    assert len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0


def test_markdown_marks_the_best_and_says_what_is_shown(nasty) -> None:
    text = export_table(nasty, "markdown").decode()
    assert "| **0.9 ± 0.1** | – |" in text
    assert text.endswith("mean ± std\n")


def test_csv_and_parquet_read_back(nasty) -> None:
    plain = pd.DataFrame(nasty)
    read = pd.read_csv(io.BytesIO(export_table(nasty, "csv")))
    assert read["variant"].tolist() == nasty["variant"].tolist()
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(export_table(nasty, "parquet"))), plain)


def test_a_table_without_a_caption_is_just_a_table() -> None:
    frame = pd.DataFrame({"algo": ["emtc_qplex"], "3m": ["97.5 ± 1.0"], "8m": [None]})
    assert export_table(frame, "csv").decode() == "algo,3m,8m\nemtc_qplex,97.5 ± 1.0,\n"
    assert export_table(frame, "markdown").decode().endswith("| emtc_qplex | 97.5 ± 1.0 | – |\n")
    assert export_table(frame, "latex").decode().startswith(r"\begin{tabular}{lll}")
    assert r"emtc\_qplex & 97.5 $\pm$ 1.0 & -- \\" in export_table(frame, "latex").decode()
    with pytest.raises(ValueError, match="format must be one of"):
        export_table(frame, "xlsx")
