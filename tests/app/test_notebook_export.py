"""The notebook as files: figures that survive freezing, texts that stay texts, cells that rebuild what was pinned."""

import base64
import io
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from app.analysis.aggregates import Aggregation
from app.analysis.curves import read_curves, read_tables
from app.analysis.projections.linear import compute_pca, select_axes
from app.analysis.projections.snapshots import sample_rows
from app.analysis.results import select_results
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, has_coordinates
from app.analysis.what_if import (
    WhatIfSettings,
    evaluate_what_if,
    merge_nodes,
    read_gate_settings,
    read_recorded_transitions,
)
from app.cli.main import run
from app.figures.kinds.chart import Chart, Line, Mark, Panel
from app.figures.kinds.maps import Cloud, Grid, Heatmap, Maps, Trace
from app.figures.named.curves import draw_comparison
from app.figures.named.live import read_returns
from app.figures.named.memory_map import draw_memory, draw_selection
from app.figures.named.trajectories import draw_trajectory
from app.figures.named.what_if import draw_what_if
from app.figures.registry import FIGURES, NotebookFigure
from app.figures.render.plotly_view import to_plotly
from app.figures.run_charts import (
    GATE_METRICS,
    TRAINING_RATES,
    draw_gate_dynamics,
    draw_gate_effect,
    draw_metrics,
    draw_outcomes,
)
from app.notebook.export import export_entries
from app.notebook.markdown import sanitize, to_html
from app.notebook.view import (
    MAX_POINTS,
    MAX_POINTS_OF_LINES,
    MAX_POINTS_PER_LINE,
    freeze,
    get_note,
    make_view,
    pack,
    thaw,
    unpack,
)
from app.replay.replay import add_run_names, join_values, make_replay
from storage.engine import Database, open_database
from storage.notebook import create_entry
from storage.queries.curves import evaluations, metric_points
from storage.queries.episode_search import find_playbacks
from storage.queries.episodes import get_playback, get_trajectory
from storage.queries.gate import gate_stats
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.removal import remove_run
from storage.runs.rows import find_run
from tests.pages.seed import seed_run

COLORS = ("#a50026", "#ffffbf", "#006837")
"""A color scale other than the default."""
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](java&#115;cript:alert(1))",
    "[click][a]\n\n[a]: javascript:alert(1)",
    "<javascript:alert(1)>",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "![track](https://tracker.example/pixel.png)",
    "\\![track](https://tracker.example/pixel.png)",
    "![track][b]\n\n[b]: https://tracker.example/pixel.png",
    '"><svg onload=alert(1)>',
    "$\\href{javascript:alert(1)}{x}$",
    "<!-- --><style>*{display:none}</style>",
)


class Tags(HTMLParser):
    """Lists what a browser would build."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Tags()
    reader.feed(page)
    return reader.found


def make_cloud(n: int) -> Cloud:
    rng = np.random.default_rng(0)
    x, y, value = (rng.normal(size=n).astype(np.float32) for _ in range(3))
    value[: n // 10] = np.nan
    slot = np.arange(n, dtype=np.int64)
    return Cloud("memory-atlas", "Cloud", "x", "y", x, y, slot, value, NODE_QUANTITIES["h"], "Caption.")


def make_chart(n: int) -> Chart:
    x = np.arange(n, dtype=np.float64) * 1000
    y = np.sin(x / 5e4)
    y[n // 3] = 7.5
    y[n // 2 : n // 2 + max(2, n // 20)] = np.nan
    line = Line("a", "#0072B2", x, y, y - 1, y + 1, dash=(6, 4))
    return Chart(
        "c", "Chart", "env steps", (Panel("P", "u", (line,), range=(-1, 8)),), "Caption.", "Described.", (Mark(3, "m"),)
    )


def assert_same(one: Chart | Cloud, other: Chart | Cloud) -> None:
    assert json.dumps(freeze(one)["figure"]) == json.dumps(freeze(other)["figure"])


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, str]:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('notebook') / 'x.db'}")
    return db, seed_run(db)


def pin(db: Database, figure: Chart | Cloud, run_id: str, page: str, title: str = "Pinned", **rest) -> int:
    facts, query = rest.get("facts", {}), rest.get("query", {"run": [run_id]})
    view = make_view(page=page, figure=figure.name, query=query, runs=[find_run(db, run_id)], facts=facts)
    return create_entry(db, title=title, body=rest.get("body", ""), run_id=run_id, figure=freeze(figure), view=view)


def code_cells(content: bytes) -> list[str]:
    return [cell["source"] for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]


def make_heatmap() -> Heatmap:
    grid = Grid("5m", np.array([[0.5, np.nan], [0.25, 1.0]]), np.array([[3, 0], [2, 3]]))
    return Heatmap("lambda-heatmap", "Map", "x", "y", ("0.1", "1"), ("a", "b"), (grid,), "μ̄_w [1]", "Caption.")


def make_maps() -> Maps:
    trace = Trace(
        "a", "#000000", np.arange(3), np.array([0, np.nan, 1], np.float32), np.zeros(3, np.float32), np.ones(3)
    )
    return Maps("strategy-divergence", "Maps", (make_cloud(30), make_cloud(20)), "Caption.", (trace, None))


@pytest.mark.parametrize(
    "figure", [make_chart(50), make_cloud(60), make_heatmap(), make_maps()], ids=lambda each: each.name
)
def test_a_figure_comes_back_as_it_was_frozen(figure) -> None:
    frozen = freeze(figure)
    text = json.dumps(frozen, allow_nan=False)
    back = thaw(json.loads(text))
    assert type(back) is type(figure)
    assert_same(back, figure)
    pd.testing.assert_frame_equal(back.to_frame(), figure.to_frame(), rtol=1e-8)
    assert get_note(frozen) == ""
    assert unpack(pack(frozen)) == json.loads(text)


@pytest.mark.parametrize(
    ("n_points", "n_lines", "limit"), [(20_000, 1, MAX_POINTS_PER_LINE), (1_500, 100, MAX_POINTS_OF_LINES // 100)]
)
def test_a_long_curve_is_thinned_keeps_its_extremes_and_says_so(n_points: int, n_lines: int, limit: int) -> None:
    chart = make_chart(n_points)
    panel = replace(chart.panels[0], lines=chart.panels[0].lines * n_lines)
    frozen = freeze(replace(chart, panels=(panel,)))
    line = thaw(frozen).panels[0].lines[0]
    assert len(line.x) <= limit
    assert np.nanmax(line.y) == 7.5
    assert (line.x[0], line.x[-1]) == (0, 1000 * (n_points - 1))
    assert np.isnan(line.y).any(), "a gap stays a gap"
    assert np.allclose(line.low[~np.isnan(line.y)] + 1, line.y[~np.isnan(line.y)])
    assert f"{limit:,} of {n_points:,} points per line" in get_note(frozen)


def test_a_big_cloud_is_thinned_and_says_so() -> None:
    frozen = freeze(make_cloud(20_000))
    assert len(thaw(frozen).slot) == MAX_POINTS
    assert "5,000 of the 20,000 points" in get_note(frozen)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_becomes_neither_markup_nor_script(text: str) -> None:
    rendered = to_html(text)
    found = tags_of(rendered)
    assert {tag for tag, _ in found} <= {"p", "a", "img", "code"}
    for tag, attributes in found:
        assert not any(name.startswith("on") for name in attributes)
        if tag == "a":
            assert attributes["href"].startswith("https://")
        if tag == "img":
            assert attributes["src"].startswith("data:image/svg+xml;base64,")
    assert_harmless_markdown(sanitize(text))


def assert_harmless_markdown(text: str) -> None:
    from markdown_it import MarkdownIt

    lenient = MarkdownIt("commonmark")
    lenient.validateLink = lambda url: True
    for tag, attributes in tags_of(lenient.render(text)):
        assert tag in ("p", "a", "em", "strong", "code", "ul", "li", "h1", "h2")
        assert (attributes.get("href") or "https://").startswith(("https://", "http://", "/"))


def test_formulas_are_drawn_and_other_markdown_is_not_changed() -> None:
    text = "# Head\n\n- **bold** [link](https://example.org) `a < b`\n\n$\\beta$ and [a view](/live?run=abc)"
    assert sanitize(text) == text
    page = to_html("It costs $5 and $6. $\\beta = e^{-\\Delta^2}$ and $\\nosuchcommand$.\n\n$$\\frac{a}{b}$$")
    images = [attributes for tag, attributes in tags_of(page) if tag == "img"]
    assert [image["class"] for image in images] == ["maths inline", "maths display"]
    assert images[0]["alt"] == "$\\beta = e^{-\\Delta^2}$"
    assert "costs $5 and $6" in page
    assert "<code>$\\nosuchcommand$</code>" in page


def test_the_page_needs_no_network_and_runs_nothing(seeded) -> None:
    db, run_id = seeded
    chart = draw_gate_dynamics(gate_stats(db, run_id), run="<b>run</b>")
    made = pin(db, chart, run_id, "live", title="<script>alert(1)</script>", body="\n\n".join(HOSTILE))
    page = export_entries(db, [made], "html", address="javascript:alert(1)").decode()
    for tag, attributes in tags_of(page):
        assert tag not in ("script", "link", "iframe", "object", "svg", "form", "base")
        assert not any(name.startswith("on") for name in attributes)
        if "src" in attributes:
            assert attributes["src"].startswith("data:image/svg+xml;base64,")
    assert not re.search(r'(src|href)="(?!data:|https://tracker\.example)', page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "default-src 'none'" in page


def test_the_markdown_zip_has_fixed_names_only(seeded) -> None:
    db, run_id = seeded
    made = pin(db, make_chart(50), run_id, "live", title="../../etc/passwd <b>", body=HOSTILE[0])
    archive = zipfile.ZipFile(io.BytesIO(export_entries(db, [made], "md", address="http://localhost:8501")))
    names = [f"figures/entry-{made}.{suffix}" for suffix in ("svg", "csv")]
    assert archive.namelist() == ["notebook.md", *names]
    text = archive.read("notebook.md").decode()
    assert f"](figures/entry-{made}.svg)" in text
    assert f"](<http://localhost:8501/live?run={run_id}>)" in text
    assert "<script" not in text
    assert archive.read(names[0]).startswith(b"<?xml")
    assert export_entries(db, [made], "md") == export_entries(db, [made], "md")


@pytest.mark.parametrize(
    ("format", "stored", "reason"),
    [
        ("md", {"figure": {"type": "Hologram"}}, "cannot be drawn"),
        ("md", {"figure": {"dtype": "int64", "values": ["x"]}}, "cannot be drawn"),
        ("html", {"figure": {"type": "Line"}}, "cannot be drawn"),
        ("ipynb", {"figure": 3}, "is not valid"),
    ],
)
def test_every_export_reports_a_figure_that_cannot_be_drawn_and_links_to_the_opened_bundle(
    seeded, format, stored, reason
) -> None:
    db, run_id = seeded
    view = make_view(page="live", figure="outcomes", query={"run": [run_id]}, runs=[], facts={})
    made = create_entry(db, title="Old", figure=stored, view=view)
    address = {"address": "http://localhost:8501", "link_parameters": {"from": "0123456789abcdef"}}
    content = export_entries(db, [made], format, **address)
    text = zipfile.ZipFile(io.BytesIO(content)).read("notebook.md").decode() if format == "md" else content.decode()
    assert reason in text
    assert f"http://localhost:8501/live?run={run_id}&from=0123456789abcdef" in unescape(text)


def pinned_figures(db: Database, run_id: str) -> list[tuple[Chart | Cloud, int]]:
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    rows = sample_rows(snapshot, n=100, seed=3)
    playback = find_playbacks(db, run_id).frame.iloc[0]
    step, number = int(playback["env_step"]), int(playback["episode"])
    name, names = find_run(db, run_id).name, ["train/loss", "embedder/info_nce_accuracy"]
    texts = {"title": "An 'atlas' \"{of}\"\n\\", "caption": "Caption."}

    def draw_map(drawn) -> Cloud:
        labels = {"x_label": drawn.x_label, "y_label": drawn.y_label}
        return draw_memory(snapshot, rows, drawn.coordinates[rows], quantity="beta", **labels, **texts)

    def draw_episode(episode) -> Chart:
        known = {"h": episode.h, "delta_mem": episode.delta_mem, "beta": episode.beta}
        return draw_trajectory(title="Episode", reward=episode.reward, **known)

    whole = compute_pca(snapshot.embedding)
    chosen = {"lasso": "-1,-1;2,-1;2,2;-1,2", "ranges": "t:3:20", "drawn": 90, "scale": list(COLORS)}
    choice = NodeSelection.parse(chosen["lasso"], chosen["ranges"])
    kept = choice.mask(snapshot, whole.coordinates)

    def draw_choice(drawn) -> Cloud:
        some = sample_rows(snapshot, n=90, seed=3)
        some = some[kept[some]]
        labels = {"x_label": drawn.x_label, "y_label": drawn.y_label}
        places = drawn.coordinates[some]
        return draw_memory(snapshot, some, places, quantity="beta", colors=COLORS, **labels, **texts)

    def draw_pair() -> Chart:
        row = find_run(db, run_id)
        first = make_replay(row, get_trajectory(db, run_id, 2), training=True)
        second = make_replay(row, get_playback(db, run_id, step, number), training=False)
        return join_values([replay.side for replay in add_run_names([first, second])])

    def draw_asked(question: WhatIfSettings, rows: NDArray[np.int64] | None = None) -> Chart:
        rules = read_gate_settings(find_run(db, run_id).config)
        stream = read_recorded_transitions(db, run_id, rules, until=snapshot.env_step)
        merged = None if question.delta_factor is None else merge_nodes(snapshot, rules, question.delta_factor)
        found = evaluate_what_if(snapshot, stream, rules, question, merged=merged, rows=rows)
        return draw_what_if(found, run=name, env_step=snapshot.env_step)

    atlas = {"snapshot": snapshot.id, "n": 100, "seed": 3, "color": "beta", "pair": 2}
    live = {"page": "live", "query": {"run": [run_id], "x": ["0-150"]}}
    reading = {"center": "median", "band": "none"}
    compared = {"page": "compare", "facts": {"quantity": "win_rate", **reading}}
    gated = metric_points(db, run_id, GATE_METRICS)
    runs = [find_run(db, run_id)]
    tables = read_tables(db, runs)
    won, losses = (select_results(read_curves(tables, key)) for key in ("win_rate", "train/loss"))
    logged = {"page": "compare", "facts": {"quantity": "train/loss", **reading}, "query": {"each": ["true"]}}
    sweep = {"page": "sweeps"}
    figures = [
        (draw_comparison(won, Aggregation(**reading)), compared),
        (draw_comparison(losses, Aggregation(**reading), per_seed=True), logged),
        (FIGURES["learning-curves"].make(db, runs), sweep),
        (draw_gate_dynamics(gate_stats(db, run_id), gated, run=name).keep_window((0, 150)), live),
        (draw_gate_effect(gated, run=name).keep_window((0, 150)), live),
        (
            draw_outcomes(
                evaluations(db, run_id),
                read_returns(db, find_run(db, run_id)),
                run=name,
                metrics=metric_points(db, run_id, TRAINING_RATES),
            ),
            {"page": "live"},
        ),
        (
            draw_metrics(metric_points(db, run_id, names), names, run=name, chance=1 / 1024),
            {"page": "live", "facts": {"metrics": names}},
        ),
        (
            draw_map(compute_pca(snapshot.embedding, fit_on=rows)),
            {"page": "memory", "facts": {**atlas, "method": "pca"}},
        ),
        (
            draw_map(compute_pca(snapshot.embedding, signs=(-1, 1))),
            {"page": "memory", "facts": {**atlas, "method": "pca", "fit": "all", "turn": [-1, 1]}},
        ),
        (draw_map(select_axes(snapshot.embedding, (0, 3))), {"page": "memory", "facts": {**atlas, "method": "axes"}}),
        (draw_choice(whole), {"page": "memory", "facts": {**atlas, **chosen, "method": "pca", "fit": "all"}}),
        (
            draw_selection(
                snapshot, kept, has_coordinates(whole.coordinates), run=name, description=choice.description
            ),
            {"page": "memory", "facts": {**atlas, **chosen, "method": "pca", "fit": "all"}},
        ),
        (draw_episode(get_trajectory(db, run_id, 2)), {"page": "memory", "facts": {"episode": 2}}),
        (
            draw_episode(get_playback(db, run_id, step, number)),
            {"page": "replay", "facts": {"episode": number, "env_step": step}},
        ),
        (
            draw_pair(),
            {
                "page": "replay",
                "facts": {
                    "pair": [{"run": run_id, "episode": 2}, {"run": run_id, "episode": number, "env_step": step}]
                },
            },
        ),
        (
            draw_asked(WhatIfSettings(tau_factor=0.5), np.flatnonzero(kept)),
            {
                "page": "memory",
                "facts": {
                    **atlas,
                    **chosen,
                    "method": "pca",
                    "fit": "all",
                    **vars(WhatIfSettings(tau_factor=0.5)),
                },
            },
        ),
        *(
            (draw_asked(question), {"page": "memory", "facts": {"snapshot": snapshot.id, **vars(question)}})
            for question in (WhatIfSettings(tau_fixed=0.3), WhatIfSettings(delta_factor=3160.0, successor="link"))
        ),
    ]
    return [(figure, pin(db, figure, run_id, **rest)) for figure, rest in figures]


def run_cells(content: bytes, monkeypatch: pytest.MonkeyPatch, url: str) -> list:
    """Run the notebook; return what each cell that shows a figure shows."""
    monkeypatch.setenv("EMTC_DB", url)
    names: dict = {"__name__": "__main__"}
    shown = []
    for source in code_cells(content):
        if source.startswith("show("):
            shown.append(eval(compile(source, "cell", "eval"), names))
        else:
            exec(compile(source, "cell", "exec"), names)
    return shown


@pytest.mark.ci
def test_the_cells_rebuild_every_figure_from_the_database(seeded, monkeypatch, capsys) -> None:
    db, run_id = seeded
    figures = pinned_figures(db, run_id)
    content = export_entries(db, [made for _, made in figures], "ipynb")
    shown = run_cells(content, monkeypatch, db.url)
    assert capsys.readouterr().out == "", "no figure fell back to what was frozen"
    calls = [source for source in code_cells(content) if source.startswith("show(")]
    assert all(source.startswith("show(lambda db: db.figure(") for source in calls)
    for (figure, _), drawn in zip(figures, shown, strict=True):
        assert json.loads(drawn.to_json()) == json.loads(to_plotly(figure).to_json())


@pytest.mark.ci
def test_the_cells_fall_back_to_the_frozen_figures(tmp_path: Path, monkeypatch, capsys) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'y.db'}")
    run_id = seed_run(db)
    figures = pinned_figures(db, run_id)
    remove_run(db, run_id)
    content = export_entries(db, [made for _, made in figures], "ipynb")
    run_cells(content, monkeypatch, db.url)
    assert capsys.readouterr().out.count("As it was frozen") == len(figures)
    run_cells(content, monkeypatch, f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


_KERNEL = """
import json, sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("app", "storage", "emtc_core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Wall())
names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        *lines, last = cell["source"].rstrip().split("\\n")
        if last.startswith("show("):
            exec("\\n".join(lines), names)
            assert eval(last, names)._repr_png_().startswith(b"\\x89PNG")
            print("shown")
        else:
            exec(cell["source"], names)
"""


def test_a_kernel_without_the_project_says_what_to_install_and_shows_what_was_frozen(seeded, tmp_path: Path) -> None:
    db, run_id = seeded
    made = [pin(db, make_chart(50), run_id, page) for page in ("live", "nowhere")]
    (tmp_path / "n.ipynb").write_bytes(export_entries(db, made, "ipynb"))
    alone = [sys.executable, "-I", "-c", _KERNEL, str(tmp_path / "n.ipynb")]
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith(
        "No module named 'app'. Install EMTC Lab in this kernel with: pip install -e . in a checkout"
    )
    assert rest == ["shown", "shown"]


def test_the_notebook_is_valid_and_shows_its_figures_without_running(seeded) -> None:
    db, run_id = seeded
    made = pin(db, make_cloud(60), run_id, "memory", title="<b>T</b>", body=HOSTILE[0])
    note = create_entry(db, title="Only text", body="$\\beta$")
    content = export_entries(db, [made, note], "ipynb", address="http://localhost:8501")
    read = nbformat.reads(content.decode(), as_version=4)
    nbformat.validate(read)
    outputs = [output for cell in read.cells for output in cell.get("outputs", [])]
    assert base64.b64decode(outputs[0]["data"]["image/png"]).startswith(b"\x89PNG")
    assert "<script" not in "".join(cell.source for cell in read.cells if cell.cell_type == "markdown")


def test_what_a_stranger_stored_in_a_view_never_becomes_code(seeded, monkeypatch) -> None:
    db, _ = seeded
    evil = "'); raise SystemExit('owned') #"
    view = {"page": "live", "figure": "gate-dynamics", "query": {"x": [evil]}, "runs": [{"id": evil}], "facts": {}}
    others = [
        view | {"query": {"x": ["nan-inf"]}, "runs": [{"id": "abcd2345"}]},
        view | {"query": {}},
        view | {"figure": "metrics", "facts": {"metrics": [evil]}},
        view | {"page": "memory", "figure": "memory-atlas", "facts": {"snapshot": evil, "n": 1, "seed": 1}},
        view | {"page": "replay", "figure": "trajectory", "facts": {"episode": "1);"}},
        view | {"page": "memory", "figure": "what-if", "facts": {"snapshot": 1, "tau_factor": evil}},
        view | {"figure": evil},
    ]
    ids = [create_entry(db, title="x", figure=freeze(make_chart(5)), view=each) for each in [view, *others]]
    shown = run_cells(export_entries(db, ids, "ipynb"), monkeypatch, db.url)
    assert len(shown) == len(ids), "every cell came to its end"


def test_a_password_does_not_travel_with_the_notebook() -> None:
    from app.notebook.export import to_jupyter

    content = to_jupyter([], database="postgresql+psycopg://me:secret@host/db?x=1", address=None).decode()
    assert "secret" not in content
    assert "postgresql+psycopg://me@host/db?x=1" in content


@pytest.mark.parametrize(("name", "start"), [("n.ipynb", b"{"), ("n.zip", b"PK"), ("n.md", b"# ")])
def test_the_command_line_writes_by_the_ending_of_the_file(seeded, tmp_path: Path, name: str, start: bytes) -> None:
    db, run_id = seeded
    made = pin(db, make_chart(50), run_id, "live")
    assert run(["notebook", "export", str(made), "--out", str(tmp_path / name), "--db", db.url]) == 0
    assert (tmp_path / name).read_bytes().startswith(start)
    assert (tmp_path / "figures" / f"entry-{made}.svg").exists() == (name == "n.md")


def test_the_command_line_lists_entries_as_json(seeded, capsys) -> None:
    db, run_id = seeded
    made = pin(db, make_chart(50), run_id, "live", title="Unmistakable title")
    assert run(["notebook", "--json", "--search", "unmistakable", "--db", db.url]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["title"], row["runs"], row["page"]) == (made, "Unmistakable title", run_id, "live")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["export", "999", "--out", "n.html"], "There is no notebook entry 999"),
        (["export", "--out", "n.docx"], "must be one of md, html, ipynb, got 'docx'"),
        (["export"], "--out"),
    ],
)
def test_unusable_arguments_write_nothing(seeded, tmp_path: Path, capsys, monkeypatch, arguments, fragment) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["notebook", *arguments, "--db", seeded[0].url]) == 2
    assert fragment in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_cell_shows_a_picture_beside_what_is_live() -> None:
    """What executes a notebook to HTML or PDF runs no script: it takes the picture."""
    shown = NotebookFigure(make_chart(50))
    assert shown._ipython_display_ is shown._repr_html_ is None, "either would be shown in the bundle's place"
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.plotly.v1+json", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    shown.update_layout(title={"text": "mine"})
    assert set(shown._repr_mimebundle_()) == {"application/vnd.plotly.v1+json"}, "an old picture of a changed figure"
