"""Tables: what a cell says, what is bold, and that every format can be read back."""

import io
import re

import numpy as np
import pandas as pd
import pytest

from app.analysis.aggregates import Aggregation
from app.analysis.finals import name_final
from app.analysis.intervals import INTERVAL_LABELS, BinomialScale
from app.analysis.tables import Column, Table, export_table, make_plain_table, make_table
from app.analysis.win_rates import choose_mu_w_steps, format_aggregate, tabulate_mu_w, tabulate_win_rates
from tests.app.curve_cases import RunCase, join, make_run


@pytest.fixture
def seeds() -> list[RunCase]:
    """Two algorithms on 3m, one of them on 8m too, two seeds each; win rates ramp to their last value at step 400."""
    ends = {("emtc-qplex", "3m"): (1.0, 0.9), ("qmix", "3m"): (0.95, 0.95), ("qmix", "8m"): (0.5, 0.25)}
    return [
        make_run(
            f"{algo}-{map}-{seed}", [(step, last * step / 400) for step in (0, 100, 400)], algo=algo, map=map, seed=seed
        )
        for (algo, map), values in ends.items()
        for seed, last in enumerate(values, 1)
    ]


def test_win_rates_stand_by_variant_and_map_and_ties_are_all_bold(seeds) -> None:
    worse = [make_run(f"vdn{k}", [(0, 0.2), (400, 0.4)], algo="vdn", seed=k) for k in (1, 2)]
    table = tabulate_win_rates(join([*seeds, *worse], for_final_numbers=True), Aggregation())
    assert table.frame.columns.tolist() == ["variant", "3m", "8m"]
    assert table.frame["variant"].tolist() == ["EMTC(QPLEX)", "QMIX", "VDN"]
    assert table.frame["3m"].tolist() == ["95.0 ± 7.1 (2 seeds)", "95.0 ± 0.0 (2 seeds)", "40.0 ± 0.0 (2 seeds)"]
    assert table.frame["8m"].tolist() == ["–", "37.5 ± 17.7 (2 seeds)", "–"]
    assert table.best == {(0, "3m"), (1, "3m")}, "8m has one cell: nothing to compare"
    markdown = export_table(table, "markdown").decode()
    assert "| EMTC(QPLEX) | **95.0 ± 7.1 (2 seeds)** | – |" in markdown
    assert markdown.endswith(f"\n{table.caption}\n")
    assert "mean ± standard deviation over seeds" in table.caption
    assert table.excluded_lines == []


def test_mu_w_is_read_at_chosen_steps_and_only_where_a_seed_got_there(seeds) -> None:
    short = make_run(
        "qmix-3m-2", [(0, 0.0), (100, 0.95 / 4)], algo="qmix", map="3m", seed=2, status="stopped", env_steps=120
    )
    seeds = [short if seed.id == "qmix-3m-2" else seed for seed in seeds]
    steps = dict.fromkeys(("3m", "8m"), (100, 400, 500))
    table = tabulate_mu_w(join(seeds, include_unfinished=True), steps, Aggregation("mean", "none"))
    assert table.frame.columns.tolist() == [
        "variant",
        "3m · 100",
        "3m · 400",
        "3m · 500",
        "8m · 100",
        "8m · 400",
        "8m · 500",
    ]
    assert table.frame["3m · 100"].tolist() == [
        "0.119 (2 seeds)",
        "0.119 (2 seeds)",
    ]  # the stopped run reached step 100
    assert table.frame["3m · 400"].tolist() == ["0.475 (2 seeds)", "0.475 (1 seed)"]  # half of where the ramps end
    assert table.frame["3m · 500"].tolist() == ["–", "–"]
    assert (
        "run qmix-3m-2 (QMIX on 3m; seed 2): last evaluated at 100; stopped at 120 of 1,000 env steps"
        in table.excluded_lines
    )


def cut(status: str) -> RunCase:
    """A run of EMTC(QPLEX) that played perfectly as far as it got."""
    return make_run("cut", [(0, 1.0), (30, 1.0)], status=status, env_steps=42, seed=3)


def test_a_run_that_has_not_finished_is_no_result_and_is_listed_in_every_format(seeds) -> None:
    table = tabulate_win_rates(join([*seeds, cut("lost")], for_final_numbers=True), Aggregation())
    assert table.frame["3m"].tolist()[0] == "95.0 ± 7.1 (2 seeds)"
    reason = "run cut (EMTC(QPLEX) on 3m; seed 3): lost at 42 of 1,000 env steps"
    assert table.excluded_lines == ["Left out: 1 selected run.", reason]
    assert f"\n% {reason}\n" in export_table(table, "latex").decode()
    assert f"\n- {reason}\n" in export_table(table, "markdown").decode()
    assert table.notes == f"{table.caption}\nLeft out: 1 selected run.\n{reason}"
    assert len(pd.read_csv(io.BytesIO(export_table(table, "csv")))) == len(table)


def test_an_unfinished_run_that_is_asked_for_has_a_dagger_and_is_never_bold(seeds) -> None:
    alone = [seed for seed in seeds if seed.settings["algo"] == "qmix"]
    beside = [make_run(f"vdn{k}", [(0, 0.2), (400, 0.4)], algo="vdn", seed=k) for k in (1, 2)]
    every = join([*alone, *beside, cut("running")], include_unfinished=True, for_final_numbers=True)
    table = tabulate_win_rates(every, Aggregation())
    assert table.frame["3m"].tolist() == ["100.0† (1 seed)", "95.0 ± 0.0 (2 seeds)", "40.0 ± 0.0 (2 seeds)"]
    assert table.best == {(1, "3m")}
    assert "† includes an unfinished run" in table.caption
    assert r"100.0$^\dagger$" in export_table(table, "latex").decode()


def test_a_cell_is_of_seeds_and_never_an_ablation_and_reports_as_its_runs_say() -> None:
    seeds = [
        make_run("a", [(0, 0.8)], seed=1),
        make_run("b", [(0, 1.0)], seed=2),
        make_run("c", [(0, 0.1)], "gate.enabled=false"),
        make_run("d", [(0, 0.5)], "eval.report=median", "eval.seeds=1", algo="qmix"),
    ]
    table = tabulate_win_rates(join(seeds, for_final_numbers=True)).frame.set_index("variant")["3m"]
    assert table["EMTC(QPLEX)"] == "90.0 ± 14.1 (2 seeds)"
    assert table["EMTC(QPLEX), No-TCGM"] == "10.0 (1 seed)"
    assert table["QMIX"] == "50.0 (1 seed)"


def test_the_steps_of_mu_w_are_those_that_all_runs_of_the_map_reached(seeds) -> None:
    """The shortest run of the database must not decide for the other maps."""
    long = [make_run(f"l{k}", [(0, 0), (1_000_000, 1)], map="corridor", seed=k) for k in (1, 2)]
    far = [make_run(f"f{k}", [(0, 0), (2_400_000, 1)], map="MMM2", seed=k) for k in (1, 2)]
    assert choose_mu_w_steps(join([*seeds, *long, *far]).by_variant) == {
        "3m": (100, 200, 400),
        "8m": (100, 200, 400),
        "corridor": (250_000, 500_000, 1_000_000),
        "MMM2": (800_000, 1_600_000, 2_400_000),
    }
    assert choose_mu_w_steps([]) == {}


def test_a_column_of_equal_cells_has_no_best_one() -> None:
    pairs = [
        make_run(f"{algo}{k}", [(0, 0.0), (400, 0.0)], algo=algo, seed=k) for algo in ("qmix", "vdn") for k in (1, 2)
    ]
    comparison = join(pairs, for_final_numbers=True)
    assert not tabulate_win_rates(comparison, Aggregation()).best
    assert not tabulate_mu_w(comparison, {"3m": [400]}, Aggregation()).best


def test_an_interquartile_mean_of_few_seeds_is_explained(seeds) -> None:
    comparison = join(seeds, for_final_numbers=True)
    told = "The interquartile mean of 2 or 3 seeds is their mean"
    assert told in tabulate_win_rates(comparison, Aggregation("iqm", "ci")).caption
    assert told not in tabulate_win_rates(comparison, Aggregation("mean", "ci")).caption
    five = join([make_run(f"a{k}", [(0, 0.8)], seed=k) for k in range(5)], for_final_numbers=True)
    assert told not in tabulate_win_rates(five, Aggregation("iqm", "ci")).caption


QUARTERS = (0.0, 25.0, 50.0, 75.0, 100.0)


@pytest.mark.parametrize(
    ("values", "aggregation", "options", "text"),
    [
        (QUARTERS, Aggregation("mean", "std"), {}, "50.0 ± 39.5"),
        (QUARTERS, Aggregation("mean", "se"), {}, "50.0 ± 17.7"),
        (QUARTERS, Aggregation("median", "iqr"), {}, "50.0 [25.0–75.0]"),
        (QUARTERS, Aggregation("mean", "minmax"), {}, "50.0 [0.0–100.0]"),
        (QUARTERS, Aggregation("mean", "ci"), {}, "50.0 [0.9–99.1]"),  # t of 4 dof: 2.776 · 39.53 / √5 = 49.1
        (QUARTERS, Aggregation("mean", "bootstrap"), {}, "50.0 [20.0–80.0]"),
        (QUARTERS, Aggregation("iqm", "none"), {}, "50.0"),
        ((50.0,), Aggregation("mean", "ci"), {}, "50.0"),
        # three seeds that won all, counted as 8 episodes each: p > 24 / (24 + t²), t = 4.303 with 2 dof
        ((100.0,) * 3, Aggregation("mean", "ci"), {"scale": BinomialScale(100, 16)}, "100.0 [56.5–100.0]"),
        ((0.0003, 0.0005), Aggregation(), {"digits": 3}, "0.00040 ± 0.00014"),
    ],
    ids=["std", "se", "iqr", "minmax", "ci", "bootstrap", "none", "one seed", "ci of win rates", "small number"],
)
def test_a_cell_quotes_its_statistic(values, aggregation, options, text) -> None:
    assert format_aggregate(np.array(values), aggregation, **options).text == text


def test_csv_and_parquet_say_value_edges_seeds_statistic_and_interval_of_every_cell(seeds) -> None:
    table = tabulate_win_rates(join(seeds, for_final_numbers=True), Aggregation("mean", "ci"))
    for read in (
        pd.read_csv(io.BytesIO(export_table(table, "csv"))),
        pd.read_parquet(io.BytesIO(export_table(table, "parquet"))),
    ):
        parts = ("value", "low", "high", "n", "statistic", "interval")
        wanted = [name for map in ("3m", "8m") for name in (map, *(f"{map} {part}" for part in parts))]
        assert read.columns.tolist() == ["variant", *wanted]
        ours = read.set_index("variant").loc["EMTC(QPLEX)"]
        assert (ours["3m"], ours["3m value"], ours["3m n"]) == ("95.0 [8.1–100.0] (2 seeds)", 95.0, 2)
        assert ours["3m low"] == pytest.approx(8.1, abs=0.05)
        assert ours["3m statistic"] == f"{name_final('last-tenth', unit='%')}, mean over seeds"
        assert ours["3m interval"] == str(INTERVAL_LABELS["mean", True])
        assert pd.isna(ours[["8m value", "8m low", "8m n", "8m statistic"]]).all()
    assert "value" not in export_table(table, "latex").decode()
    assert "value" not in export_table(table, "markdown").decode()


NASTY = "emtc_qplex (a & b = 50 %, {c} #1 $x$ ~ ^ \\\\ <d> τ)"


@pytest.fixture
def nasty() -> Table:
    columns = ["variant", Column("0.8M", group="3m"), Column("1.6M", group="3m")]
    rows = [[NASTY, "0.9 ± 0.1", "–"], ["qmix", None, "0.5"]]
    return make_table(columns, rows, caption="mean ± std", best=[(0, "3m · 0.8M")])


def cells_of(row: str) -> list[str]:
    return re.split(r"(?<!\\)&", row.removesuffix(r"\\"))


def test_latex_is_balanced_escaped_bold_and_nested(nasty) -> None:
    lines = export_table(nasty, "latex").decode().splitlines()
    assert lines[:2] == [r"% \usepackage{booktabs,graphicx,siunitx}", "% mean ± std"]
    assert lines[3:5] == [r"\begin{tabular}{llS[table-format=1.1]}", r"\toprule"]
    assert lines[5] == r" & \multicolumn{2}{c}{3m} \\"
    assert lines[6] == r"\cmidrule(lr){2-3}"
    rows = [line for line in lines[7:] if line.endswith(r"\\")]
    assert all(len(cells_of(row)) == 3 for row in rows)
    assert r"\textbf{\boldmath 0.9 $\pm$ 0.1}" in rows[1]
    assert rows[2] == r"qmix & -- & 0.5 \\"
    bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}", "", rows[1])
    assert not re.search(r"(?<!\\)[#_%]", bare)
    assert re.sub(r"\\[{}]", "", bare).count("{") == re.sub(r"\\[{}]", "", bare).count("}")
    assert r"$\tau$" in bare
    assert len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0


def test_a_table_without_a_caption_is_just_a_table() -> None:
    table = make_plain_table(pd.DataFrame({"algo": ["emtc_qplex"], "3m": ["97.5 ± 1.0"], "8m": [None]}))
    assert export_table(table, "csv").decode() == "algo,3m,8m\nemtc_qplex,97.5 ± 1.0,\n"
    assert export_table(table, "markdown").decode().endswith("| emtc_qplex | 97.5 ± 1.0 | – |\n")
    assert export_table(table, "latex").decode().startswith("% \\usepackage{booktabs,graphicx}\n\\noindent\\resizebox")
    assert r"emtc\_qplex & 97.5 $\pm$ 1.0 & -- \\" in export_table(table, "latex").decode()
    with pytest.raises(ValueError, match=r"\bformat\b.*xlsx"):
        export_table(table, "xlsx")
