"""The map of the memory in a real browser: growth is seen, a found episode is framed, a selection stands beside it."""

import pytest

from app.figures.assets import read_asset
from app.figures.theme import VIRIDIS_ON_DARK
from storage.queries.memory import get_snapshot, list_snapshots
from tests.browser.server import wait_until

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

COLOURED = """node => {
    const { canvas } = node.state
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
    let coloured = 0
    for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] > 200 && Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) > 40) coloured += 1
    }
    return coloured
}"""  # noqa: E501
CHOSEN = "node => Number(node.dataset.chosen)"


def open_map(page, seeded, **query: str):
    url, run_id, _ = seeded
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/memory?run={run_id}" + "".join(f"&{name}={value}" for name, value in query.items()))
    atlas = page.locator(".atlas[data-ready]").first
    atlas.wait_for()
    wait_until(page, lambda: atlas.evaluate("node => node.state.drawn > 0"), "the first picture")
    return atlas


def test_growth_is_drawn_while_it_counts_and_a_second_press_ends_it(page, seeded) -> None:
    atlas = open_map(page, seeded, ranges="t:0:1000")
    whole = atlas.evaluate(COLOURED)
    button = atlas.locator(".grow")
    place = button.bounding_box()
    seen = atlas.evaluate(
        f"""async node => {{
            const coloured = {COLOURED}, seen = []
            node.querySelector(".grow").click()
            for (let i = 0; i < 400 && seen.length < 6; i += 1) {{
                await new Promise(requestAnimationFrame)
                const now = [Number(node.dataset.chosen), coloured(node)]
                if (node.state.growing && now[1] !== seen.at(-1)?.[1]) seen.push(now)
            }}
            return seen
        }}"""
    )
    assert len({pixels for _, pixels in seen}) >= 4, f"as the caption counts, the picture changes: {seen}"
    assert min(pixels for _, pixels in seen) < whole
    assert button.bounding_box() == place, "nothing slides under the pointer"
    button.click()
    wait_until(page, lambda: not atlas.evaluate("node => Boolean(node.state.growing)"), "the end of the growth")
    assert "t:0:1000" in page.url.replace("%3A", ":"), "a second press clears no choice"


def test_map_and_panel_fit_on_one_screen(page, seeded) -> None:
    atlas = open_map(page, seeded, point="7")
    player = page.locator(".playback")
    player.locator(".field").wait_for()
    wait_until(page, lambda: player.locator(".lines").bounding_box()["height"] > 100, "the values of the episode")
    for part in (atlas, player.locator(".field"), player.locator(".controls")):
        box = part.bounding_box()
        assert box["y"] + box["height"] <= 900
    page.set_viewport_size({"width": 1024, "height": 768})
    main = page.get_by_test_id("stMain")
    wait_until(page, lambda: player.bounding_box()["width"] < 420, "a narrow panel")
    next_box = main.get_by_role("button", name="Next").bounding_box()
    link_box = main.get_by_role("link", name="Replay").last.bounding_box()  # the first one is the tab
    assert abs(link_box["y"] - next_box["y"]) < 1
    assert abs(link_box["height"] - next_box["height"]) < 1
    cut = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).map(node => node.textContent)"
    assert player.locator(".under, .key, .controls").evaluate_all(cut) == []
    note = player.locator(".note").first
    assert note.evaluate("node => node.clientWidth / node.closest('.under').clientWidth") > 0.9, "the note has its row"
    page.set_viewport_size({"width": 1440, "height": 900})
    heading = page.locator("h5", has_text="Memory 7")
    heading.evaluate("node => { node.textContent = 'Memory 123456' }")
    row = [
        page.locator("h5", has_text="Memory 123456"),
        page.get_by_role("button", name="Fields"),
        page.get_by_text("Neighbors", exact=True),
    ]
    middles = [box["y"] + box["height"] / 2 for box in (part.bounding_box() for part in row)]
    assert max(middles) - min(middles) < 15, "a long id does not wrap the buttons next to it"


def test_a_dense_map_draws_disks_only_for_few_colored_points(page) -> None:
    page.goto("about:blank")
    page.add_script_tag(
        content="const NO_INK = 255, N_INKS = 255" + read_asset("common.js") + read_asset("atlas_picture.js")
    )
    n_drawn = page.evaluate(
        """() => {
            const n = 70000, canvas = document.createElement("canvas")
            const [x, y] = [0, 1].map(() => Float32Array.from({ length: n }, Math.random))
            const draw = (nColored) => {
                let drawn = 0
                window.stampPoint = () => { drawn += 1 }
                const inks = Uint8Array.from({ length: n }, (_, k) => (k < nColored ? 100 : NO_INK))
                const scales = { kx: 100, ky: 100, sx: (v) => v, sy: (v) => v }
                const quantity = { noEffect: 0 }
                const map = { grid: { x, y }, chosen: new Uint8Array(n).fill(1), inks, scales, quantity, canvas,
                    view: { x: 0, y: 0 }, packed: new Uint32Array(255) }
                drawDensity(map, { ctx: canvas.getContext("2d"), width: 300, height: 300, ratio: 1 }, [[0, n]])
                return drawn
            }
            return [draw(50), draw(n)]
        }"""
    )
    assert n_drawn == [50, 0]


def test_low_values_are_visible_in_the_dark_theme(page, seeded) -> None:
    page.emulate_media(color_scheme="dark")
    atlas = open_map(page, seeded)
    assert atlas.evaluate("node => node.state.lut[0]") == VIRIDIS_ON_DARK[0]
    page.emulate_media(color_scheme="light")


def test_the_tour_marks_the_outlier_and_scrolls_to_what_if(page, seeded) -> None:
    atlas = open_map(page, seeded, tour="3", mark="7")
    suggested = "node => node.state.mark.suggestedPoint"
    wait_until(page, lambda: atlas.evaluate(suggested) is not None, "the ring of the outlier")
    page.locator(".st-key-atlas[data-tour-target]").wait_for(state="attached")
    open_map(page, seeded, tour="5", point="7", what_if="true")
    target = page.locator("[data-tour-target]")
    target.wait_for()
    wait_until(page, lambda: 0 < target.bounding_box()["y"] < 850, "What if on the screen")


def test_a_found_episode_is_large_and_fills_the_frame(page, seeded) -> None:
    atlas = open_map(page, seeded)
    _, run_id, db = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    before = atlas.evaluate("node => node.state.view.span")
    atlas.locator(".find").fill("episode 3")
    page.keyboard.press("Enter")
    wait_until(page, lambda: atlas.evaluate(CHOSEN) == (snapshot.episode == 3).sum(), "the choice of episode 3")
    wait_until(page, lambda: atlas.evaluate("node => node.state.view.span") < before, "the frame around it")
    inside = """node => {
        const { grid, chosen, scales, width, height } = node.state
        return [...chosen.keys()].filter(k => chosen[k]).every(k => {
            const [x, y] = [scales.sx(grid.x[k]), scales.sy(grid.y[k])]
            return x > 0 && y > 0 && x < width && y < height
        })
    }"""
    wait_until(page, lambda: atlas.evaluate(inside), "all of it inside the frame")


def test_a_selection_is_described_next_to_the_map_and_the_filter_covers_no_part_of_it(page, seeded) -> None:
    atlas = open_map(page, seeded)
    atlas.locator(".filter").click()
    page.get_by_role("slider", name="H, from").wait_for()
    stage, filters = atlas.locator(".stage").bounding_box(), atlas.locator(".filters").bounding_box()
    assert filters["x"] >= stage["x"] + stage["width"]
    atlas.locator(".filter").click()
    atlas.focus()
    page.keyboard.press("+")
    page.keyboard.press("s")
    told = page.get_by_role("heading", name="nodes selected")
    told.wait_for()
    frame = atlas.bounding_box()
    assert told.bounding_box()["x"] >= frame["x"] + frame["width"]
    assert told.bounding_box()["y"] < frame["y"] + frame["height"] / 2
    page.keyboard.press("+")
    page.keyboard.press("s")
    page.wait_for_timeout(1500)
    assert told.count() == 1, "a new selection takes the place of the one before"
    page.keyboard.press("Escape")
    told.wait_for(state="detached")


def test_the_nearest_nodes_are_one_press_away_and_ringed(page, seeded) -> None:
    atlas = open_map(page, seeded, point="7")
    page.get_by_role("heading", name="Memory 7", exact=True).wait_for()
    page.get_by_text("Neighbors", exact=True).click()
    page.get_by_text("episodes wrote these 10 nodes").wait_for()
    wait_until(page, lambda: atlas.evaluate("node => node.state.mark.neighbors.length") == 10, "ten rings on the map")
    assert "near=true" in page.url
