"""Two players under one cursor, and the file that plays without a server, in a real browser."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageColor

from app.figures.named.trajectories import draw_trajectory
from app.figures.theme import NEUTRAL_COLOR
from app.replay.files import make_page
from app.replay.replay import EpisodeView, make_side
from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import get_env_info
from storage.queries.episodes import get_trajectory
from tests.browser.server import wait_until

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(600)]

IS_BLANK = """node => {
    const pixels = node.getContext('2d').getImageData(0, 0, node.width, node.height).data
    return new Set(new Uint32Array(pixels.buffer)).size < 8
}"""
COUNT_PIXELS = """(node, color) => {
    const pixels = node.getContext('2d').getImageData(0, 0, node.width, node.height).data
    let count = 0
    for (let i = 0; i < pixels.length; i += 4) count += color.every((value, k) => pixels[i + k] === value)
    return count
}"""
PLACES = "node => node.state.sides.map(side => side.field.toDataURL().length + side.field.toDataURL().slice(-4000))"


def open_pair(page, seeded) -> None:
    url, run_id, _ = seeded
    page.goto(f"{url}/replay?run={run_id}&episode=1&beside=2")
    page.locator(".playback.pair .field").nth(1).wait_for()
    page.wait_for_timeout(800)


def frame_of(page) -> int:
    return int(page.locator(".playback").get_attribute("data-frame"))


def test_two_players_move_together_and_ask_nothing_of_the_server(page, seeded):
    sent: list[str] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append("")))
    open_pair(page, seeded)
    player = page.locator(".playback")
    sent.clear()
    before = player.evaluate(PLACES)
    player.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    after = player.evaluate(PLACES)
    assert frame_of(page) == 4
    assert before[0] != after[0]
    assert before[1] != after[1]
    page.keyboard.press("End")
    assert frame_of(page) == player.evaluate("node => Math.max(...node.state.sides.map(side => side.frames))") - 1
    box = page.locator(".playback .lines").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.2, box["y"] + 60)
    assert frame_of(page) > 0
    page.keyboard.press("Home")
    assert frame_of(page) == 0
    assert sent == []


def test_a_units_number_is_drawn_above_the_rings_of_health(page, seeded):
    open_pair(page, seeded)
    drawn = page.locator(".playback").evaluate("""node => {
        const drawn = [], pen = CanvasRenderingContext2D.prototype, { fillText, arc } = pen
        pen.fillText = function (...given) { if (this.canvas === node.state.sides[0].field) drawn.push("number"); return fillText.apply(this, given) }
        pen.arc = function (...given) { if (this.canvas === node.state.sides[0].field) drawn.push("arc"); return arc.apply(this, given) }
        node.state.go(3)
        Object.assign(pen, { fillText, arc })
        return drawn
    }""")  # noqa: E501  # one call of the canvas a line
    assert {"arc", "number"} <= {*drawn}
    assert "arc" not in drawn[drawn.index("number") :]


def test_the_range_of_a_unit_is_drawn_while_the_pointer_is_on_it(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/replay?run={run_id}&episode=1")
    field = page.locator(".playback .field")
    field.wait_for()
    place = "({state}) => { const { scale, arrays } = state.sides[0]; return [scale.toX(arrays.position[0]), scale.toY(arrays.position[1])] }"  # noqa: E501  # the first unit
    wait_until(
        page, lambda: page.locator(".playback").evaluate("node => Boolean(node.state.sides[0].scale)"), "a field"
    )
    before = field.evaluate("node => node.toDataURL()")
    x, y = page.locator(".playback").evaluate(place)
    field.hover(position={"x": x, "y": y})
    assert page.locator(".playback").evaluate("node => node.state.sides[0].hovered") == 0
    assert field.evaluate("node => node.toDataURL()") != before
    page.mouse.move(0, 0)
    assert field.evaluate("node => node.toDataURL()") == before


def test_scene_time_line_and_values_fit_on_one_screen(page, seeded):
    url, run_id, _ = seeded
    page.set_viewport_size({"width": 1440, "height": 900})
    for query in ("episode=1", "episode=1&beside=2"):
        page.goto(f"{url}/replay?run={run_id}&{query}")
        page.locator(".playback .field").first.wait_for()
        wait_until(page, lambda: page.locator(".playback .field").first.bounding_box()["height"] > 150, "a drawn field")
        for part in (".field", ".controls", ".lines"):
            box = page.locator(f".playback {part}").first.bounding_box()
            assert box["y"] + box["height"] <= 900, (query, part)
    page.goto(f"{url}/replay?run={run_id}&episode=1")
    page.set_viewport_size({"width": 1024, "height": 768})
    player = page.locator(".playback")
    wait_until(page, lambda: 0 < player.bounding_box()["width"] < 520, "a narrow player")
    tops = [player.locator(part).bounding_box()["y"] for part in (".play", ".last", ".speed")]
    assert max(tops) - min(tops) < 2, "buttons and speed in one row"


def test_the_frame_that_is_shown_is_saved(page, seeded):
    url, run_id, _ = seeded
    page.goto(f"{url}/replay?run={run_id}&episode=1")
    page.locator(".playback .field").wait_for()
    page.locator(".playback").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Save replay").click()
    page.locator('input[aria-label="Step of the frame"][placeholder="5"]').wait_for()


def test_map_scene_and_curves_follow_one_cursor(page, seeded):
    url, run_id, _ = seeded
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/replay?run={run_id}&episode=2")
    page.locator(".playback .field").wait_for()
    page.get_by_text("Show on memory map").click()
    atlas, player = page.locator(".atlas[data-ready]"), page.locator(".playback")
    atlas.wait_for()
    assert "atlas=true" in page.url
    wait_until(page, lambda: atlas.evaluate("node => node.state.mark.paths.length") == 1, "the path of the episode")
    player.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    wait_until(page, lambda: atlas.evaluate("node => node.state.playerStep") == 3, "the head of the path at the cursor")
    spot = atlas.evaluate("""node => {
        const s = node.state, [x, y] = s.mark.paths[0].points[7], box = s.over.getBoundingClientRect()
        return [box.left + s.scales.sx(x), box.top + s.scales.sy(y)]
    }""")
    page.mouse.click(*spot)
    wait_until(page, lambda: frame_of(page) == 7, "the step that was pressed on the map")
    assert atlas.evaluate("node => node.state.playerStep") == 7
    assert "point=" not in page.url


@pytest.mark.slow
def test_positions_move_between_steps_while_it_plays(page, seeded):
    open_pair(page, seeded)
    player = page.locator(".playback")
    player.evaluate("node => { node.state.speed = 4; node.state.drawn = 0 }")
    page.locator(".playback .play").click()
    began = time.monotonic()
    page.wait_for_timeout(3000)
    frames = player.evaluate("node => node.state.drawn")
    print(f"{frames} frames in {time.monotonic() - began:.2f} s of two players")  # noqa: T201 (reported, not asserted)
    steps = frame_of(page)
    assert frames > steps + 1, "there is nothing between the steps"
    page.keyboard.press(" ")


def test_both_fields_and_all_values_stand_in_one_window_and_stack_in_a_narrow_one(page, seeded):
    page.set_viewport_size({"width": 1440, "height": 900})
    open_pair(page, seeded)
    left, right = (page.locator(".playback .field").nth(k).bounding_box() for k in (0, 1))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    page.set_viewport_size({"width": 880, "height": 900})

    def stacked() -> bool:
        upper, lower = (page.locator(".playback .field").nth(k).bounding_box() for k in (0, 1))
        return upper["y"] + upper["height"] <= lower["y"]

    wait_until(page, stacked, "one field below the other")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture
def offline(page):
    page.context.set_offline(True)
    yield page
    page.context.set_offline(False)


def test_the_saved_page_plays_over_file_without_a_network(offline, seeded, tmp_path: Path):
    page, (_, run_id, db) = offline, seeded
    sides = [a_side(db, run_id, number) for number in (1, 2)]
    file = tmp_path / "replay.html"
    file.write_bytes(make_page(sides, start=1))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.locator(".playback .field").nth(1).wait_for()
    for canvas in page.locator(".playback .field, .playback .lines").all():
        wait_until(page, lambda canvas=canvas: not canvas.evaluate(IS_BLANK), "a picture on every canvas")
    assert frame_of(page) == 1
    page.keyboard.press("ArrowRight")
    assert frame_of(page) == 2
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert frame_of(page) == 0
    page.keyboard.press(" ")
    wait_until(page, lambda: frame_of(page) > 0, "the first frame that it plays")
    assert asked == [file.as_uri()]


def test_a_page_of_hostile_text_shows_it_as_text(page, tmp_path: Path):
    hostile = "</script><img src=x onerror=window.hit=1><b>bold</b>"
    chart = draw_trajectory(title=hostile, reward=np.ones(4))
    states = np.random.default_rng(0).random((5, 40), np.float32)
    side = make_side("chess", hostile, states=states, actions=np.ones((4, 2), int), chart=chart, title=hostile)
    file = tmp_path / "replay.html"
    file.write_bytes(make_page([side, side]))
    page.goto(file.as_uri())
    page.locator(".playback .field").first.wait_for()
    field = page.locator(".playback .field").first
    wait_until(page, lambda: not field.evaluate(IS_BLANK), "a picture on the field")
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0
    assert hostile in page.locator("h1").inner_text()
    page.locator(".playback .field").first.hover()
    assert "state " in page.locator(".playback .tip").first.inner_text()


def test_football_and_smax_are_played_too(page, tmp_path: Path):
    rng = np.random.default_rng(0)
    sides = []
    for env, map, dim in (("grf", "academy_3_vs_1_with_keeper", 26), ("smax", "3m", None)):
        states = rng.random((6, dim or smax_dim()), np.float32)
        if env == "smax":
            states[:, -6:] = 0
        else:
            states[:, 20:22] = states[:, 2:4]  # the ball is where a player is
        actions = rng.integers(0, 5, (5, 3))
        chart = draw_trajectory(title=env, reward=np.ones(5))
        sides.append(make_side(env, map, states=states, actions=actions, chart=chart, title=env))
        assert sides[-1].has_units, sides[-1].scene.note
    file = tmp_path / "replay.html"
    file.write_bytes(make_page(sides))
    page.goto(file.as_uri())
    for number in (0, 1):
        field = page.locator(".playback .field").nth(number)
        field.wait_for()
        wait_until(page, lambda field=field: not field.evaluate(IS_BLANK), "a field with its units")
    ball = page.locator(".playback .field").first.evaluate(COUNT_PIXELS, list(ImageColor.getrgb(NEUTRAL_COLOR)))
    assert ball > 10, "the ball is above the player"


def a_side(db, run_id: str, number: int) -> EpisodeView:
    episode = get_trajectory(db, run_id, number)
    chart = draw_trajectory(title=f"Episode {number}", reward=episode.reward, h=episode.h, beta=episode.beta)
    return make_side("skirmish", "3m", states=episode.state, actions=episode.action, chart=chart, title="Episode")


def smax_dim() -> int:
    info = get_env_info(EnvConfig(name="smax", map="3m"))
    assert info is not None
    return info.state_dim
