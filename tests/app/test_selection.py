"""What a lasso and ranges choose, and what is said of it, against loops that are slow and plainly right, and SQL."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from app.analysis.projections.linear import compute_pca
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, list_nodes, tabulate_selection
from app.figures.kinds.maps import Cloud, Maps, compute_color_limits
from app.figures.named.memories import MIN_REGION_NODES, find_contrast
from app.figures.named.memory_map import draw_selection
from app.figures.render.export import export_figure
from app.figures.render.maps_views import draw_points, make_color_scale
from app.figures.render.plotly_view import to_plotly
from app.figures.theme import BINARY_COLORS, VIRIDIS, VIRIDIS_ON_DARK
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.queries.episodes import get_trajectory, list_episodes
from storage.queries.memory import get_snapshot, list_snapshots
from tests.pages.seed import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory):
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('selection') / 'x.db'}")
    run_id = seed_run(db)
    yield db, run_id, get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    db.dispose()


def is_inside(polygon: list[tuple[float, float]], x: float, y: float) -> bool:
    """Count the edges that a ray to the right crosses."""
    crossed = 0
    for (ax, ay), (bx, by) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
            crossed += 1
    return crossed % 2 == 1


corners = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=3, max_size=9)


@settings(max_examples=60)
@given(polygon=corners, seed=st.integers(0, 1000))
def test_a_lasso_keeps_what_a_ray_says_is_inside(seeded, polygon, seed) -> None:
    snapshot = seeded[2]
    places = np.random.default_rng(seed).uniform(-22, 22, (snapshot.size, 2)).astype(np.float32)
    places[::7] = np.nan
    chosen = NodeSelection(tuple(polygon)).mask(snapshot, places)
    outline = [(float(x), float(y)) for x, y in polygon]
    assert chosen.tolist() == [is_inside(outline, float(x), float(y)) for x, y in places]


@pytest.mark.parametrize("ranges", ["t:5:12;episode:2:6", "delta_mem:-1e9:1e9", "success:0.5:1"])
def test_ranges_keep_the_nodes_whose_values_are_in_all_of_them(seeded, ranges: str) -> None:
    snapshot = seeded[2]
    chosen = NodeSelection.parse(ranges=ranges).mask(snapshot, compute_pca(snapshot.embedding).coordinates)

    def value(key: str, row: int) -> float:
        if key == "success":
            return float(snapshot.n_xi[row]) / float(snapshot.n_call[row])
        return float(getattr(snapshot, key)[row])

    bounds = [part.split(":") for part in ranges.split(";")]
    expected = [
        all(float(low) <= value(key, row) <= float(high) for key, low, high in bounds) for row in range(snapshot.size)
    ]
    assert chosen.tolist() == expected
    assert 0 < sum(expected) < snapshot.size


@pytest.mark.parametrize(
    ("polygon", "ranges"),
    [("1,2", ""), ("1,2;3,4", ""), ("a,b;c,d;e,f", ""), ("1,2,3;1,2;3,4", ""), ("1,nan;1,2;3,4", ""), ("", "h:1"),
     ("", "evil:0:1"), ("", "h:0:inf"), (";".join(["1,2"] * 500), "")],
)  # fmt: skip
def test_what_means_nothing_is_one_sentence(polygon: str, ranges: str) -> None:
    with pytest.raises(ConfigError):
        NodeSelection.parse(polygon, ranges)


@pytest.mark.parametrize("ranges", ["h:0.2:0.9", "h:1e6:1e7"], ids=["some", "none"])
def test_a_selection_is_described_as_a_loop_describes_it(seeded, ranges: str) -> None:
    snapshot = seeded[2]
    chosen = NodeSelection.parse(ranges=ranges).mask(snapshot, compute_pca(snapshot.embedding).coordinates)
    frame = tabulate_selection(snapshot, chosen, np.ones(snapshot.size, bool)).set_index("what")

    def median(values: list[float]) -> object:
        return pytest.approx(statistics.median(values) if values else math.nan, nan_ok=True)

    for part, wanted in (("selected", True), ("rest", False)):
        rows = [row for row in range(snapshot.size) if chosen[row] == wanted]
        described = frame[part]
        assert described["nodes"] == len(rows)
        assert described["episodes of origin"] == len({int(snapshot.episode[row]) for row in rows})
        known = [float(snapshot.delta_mem[row]) for row in rows if not math.isnan(snapshot.delta_mem[row])]
        assert described["Δ_mem, median"] == median(known)
        h = sorted(float(snapshot.h[row]) for row in rows)
        assert described["H, median"] == median(h)
        if rows:
            assert h[0] <= described["H, 10 %"] <= described["H, median"] <= described["H, 90 %"] <= h[-1]
            assert described["desirable, ξ"] == pytest.approx(sum(bool(snapshot.xi[row]) for row in rows) / len(rows))
            visits = sum(int(snapshot.n_call[row]) for row in rows)
            successes = sum(int(snapshot.n_xi[row]) for row in rows)
            assert described["success, ΣN_ξ ÷ ΣN_call"] == pytest.approx(successes / visits)
    assert not draw_selection(snapshot, chosen, np.ones(snapshot.size, bool), run="r", description=ranges).is_empty


def test_the_drawn_quantiles_are_those_of_numpy(seeded) -> None:
    snapshot = seeded[2]
    chosen = snapshot.t < 9
    chart = draw_selection(snapshot, chosen, np.ones(snapshot.size, bool), run="r", description="t 0 – 8")
    lines = {(panel.title, line.name): line for panel, line in chart.panel_lines}
    assert lines["H", "selected"].y[50] == pytest.approx(np.median(snapshot.h[chosen]))
    assert lines["t", "rest"].y[0] == 9
    assert [panel.unit for panel in chart.panels] == ["return", "return", "fraction", "steps"]


def test_a_list_of_nodes_has_every_quantity(seeded) -> None:
    db, run_id, snapshot = seeded
    rows = np.array([0, 17, snapshot.size - 1])
    frame = list_nodes(snapshot, compute_pca(snapshot.embedding).coordinates, rows)
    assert frame.columns.tolist() == ["slot", "x", "y", *NODE_QUANTITIES]
    assert frame["h"].tolist() == snapshot.h[rows].tolist()
    starts = list_episodes(db, run_id, "episode", limit=100).set_index("episode")["first_env_step"]
    for node in frame.itertuples():
        visited_at = starts[node.episode] - 1 + node.t  # env steps before the state
        assert node.age == snapshot.env_step - visited_at


def test_the_opposite_of_an_episode_is_the_one_that_ended_most_differently(seeded) -> None:
    db, run_id, snapshot = seeded
    frame = list_episodes(db, run_id, "episode", limit=100).set_index("episode")
    for number in (1, 2):
        own = get_trajectory(db, run_id, number)
        begin = snapshot.embedding[snapshot.row_of(int(own.slots[0]))]
        near = sorted(range(snapshot.size), key=lambda row: float(((snapshot.embedding[row] - begin) ** 2).sum()))
        others = frame.loc[sorted({int(snapshot.episode[row]) for row in near[:MIN_REGION_NODES]} - {number})]
        unlike = others[others["won"] != own.won]["episode_return"]
        assert find_contrast(db, snapshot, own) == (unlike.idxmin() if own.won else unlike.idxmax())


def test_a_colour_scale_shows_the_few_that_differ_where_nearly_all_are_alike() -> None:
    values = np.zeros(10_000, np.float32)
    values[:40] = np.linspace(1, 2, 40)
    assert compute_color_limits(values, NODE_QUANTITIES["success"]) == (0, pytest.approx(1.99, abs=0.01))
    assert compute_color_limits(values, NODE_QUANTITIES["delta_mem"]) == pytest.approx((1.01, 1.99), abs=0.01)
    assert compute_color_limits(np.arange(1001, dtype=np.float32), NODE_QUANTITIES["h"]) == (10, 990)
    assert compute_color_limits(np.full(5, np.nan, np.float32), NODE_QUANTITIES["h"]) == (0, 1)
    assert compute_color_limits(values, NODE_QUANTITIES["xi"]) == (0, 1)


def test_nodes_without_effect_of_the_gate_are_gray_and_below_in_every_format() -> None:
    value = np.array([0, 0.5, np.nan, 50, 0], np.float32)
    place = np.arange(5, dtype=np.float32)
    quantity = NODE_QUANTITIES["delta_mem"]
    cloud = Cloud("map", "Map", "x", "y", place, place, np.arange(5), value, quantity, "")
    assert cloud.has_color.tolist() == [False, True, False, True, False]
    assert 0.5 <= cloud.low < cloud.high <= 50, "0 does not count, so the logarithmic scale has positive limits"
    gray, colored = to_plotly(cloud).data
    assert gray.x.tolist() == [0, 4]
    assert colored.x.tolist() == [1, 3]
    assert colored.marker.color.tolist() == pytest.approx(np.log10([0.5, 50]))
    axes = Figure().subplots()
    draw_points(axes, cloud, make_color_scale(cloud, cloud.low, cloud.high), area=4)
    assert [len(points.get_offsets()) for points in axes.collections] == [2, 2]
    assert axes.collections[0].get_sizes() < axes.collections[1].get_sizes()
    assert "gray: 0" in cloud.description
    assert export_figure(cloud, "svg")


def test_a_dark_map_has_the_color_scale_of_the_dark_page() -> None:
    place = np.arange(3, dtype=np.float32)
    cloud = Cloud("map", "Map", "x", "y", place, place, np.arange(3), place, NODE_QUANTITIES["h"], "")
    for mode, lowest in (("light", VIRIDIS[0]), ("dark", VIRIDIS_ON_DARK[0])):
        for figure in (cloud, Maps("maps", "Maps", (cloud,), "")):
            assert to_plotly(figure, mode=mode).data[0].marker.colorscale[0][1] == lowest
    dark_image = export_figure(replace(cloud, scale=VIRIDIS_ON_DARK), "png", mode="dark")
    assert export_figure(cloud, "png", mode="dark") == dark_image
    custom = ("#a50026", "#ffffbf", "#006837")
    assert replace(cloud, scale=custom).on_dark_background().colors == custom
    binary = replace(cloud, quantity=NODE_QUANTITIES["xi"])
    assert binary.on_dark_background().colors == BINARY_COLORS


@pytest.mark.parametrize("key", ["delta_mem", "beta"])
def test_a_map_on_which_the_gate_has_no_effect_at_all_is_drawn(key: str) -> None:
    quantity = NODE_QUANTITIES[key]
    place = np.arange(3, dtype=np.float32)
    value = np.full(3, quantity.no_effect, np.float32)
    cloud = Cloud("map", "Map", "x", "y", place, place, np.arange(3), value, quantity, "")
    assert not cloud.has_color.any()
    assert export_figure(cloud, "png")
    assert len(to_plotly(cloud).data) == 2
