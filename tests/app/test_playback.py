"""What is drawn of one or two episodes, between their steps too, and their files: HTML, GIF, SVG and PNG."""

import base64
import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as FileFigure
from PIL import Image, ImageColor

from app.analysis import episodes
from app.analysis.episodes import draw_scene, find_fault
from app.figures.named.trajectories import draw_trajectory
from app.figures.theme import NEUTRAL_COLOR
from app.replay.drawing import FieldArtist, draw_image
from app.replay.files import choose_moments, make_gif, make_page, read_replays
from app.replay.layout import (
    MOVED_APART,
    EpisodeLayout,
    crop_field,
    lay_out_episodes,
    mix_frames,
    separate_units,
)
from app.replay.payload import make_payload
from app.replay.replay import (
    MISSING,
    EpisodeView,
    join_values,
    make_side,
    quantize_values,
    style_actions,
)
from emtc_core.envs.grf.scenarios import ACTION_NAMES
from emtc_core.envs.scene import Scene, find_passes
from emtc_core.errors import ConfigError
from tests.errors import raises


def make_scene(frames: int = 5, *, health: float = 1.0) -> Scene:
    """Two agents and an opponent; agent 0 walks right, agent 1 dies after the second frame."""
    position = np.zeros((frames, 3, 2), np.float32)
    position[:, 0, 0] = np.arange(frames) * 2
    position[:, 1] = (5, 5)
    position[:, 2] = (9, 3)
    alive = np.ones((frames, 3), bool)
    alive[2:, 1] = False
    return Scene(
        position=position,
        health=np.where(alive, health, 0).astype(np.float32),
        shield=np.zeros((frames, 3), np.float32),
        alive=alive,
        team=np.array([0, 0, 1], np.int8),
        radius=np.full(3, 0.5, np.float32),
        kind=("marine", "marine", "zealot"),
        bounds=(0.0, 0.0, 32.0, 32.0),
        target=np.where(np.arange(3) == 0, 2, -1)[None].repeat(frames, 0).astype(np.int16),
    )


def make_episode(frames: int = 5, *, title: str = "Episode", **options: object) -> EpisodeView:
    values = np.linspace(0, 1, frames - 1)
    chart = draw_trajectory(title=title, reward=values, h=values, delta_mem=values, beta=values)
    actions = np.tile(np.array([6, 0]), (frames - 1, 1))
    names = ("no-op", "stop", "north", "south", "east", "west", "attack 0")
    return EpisodeView(make_scene(frames, **options), chart, title, actions, names)  # type: ignore[arg-type]


def lay_out(scene: Scene, *, has_rings: bool = True) -> EpisodeLayout:
    """Lay out a scene on its whole field."""
    (layout,) = lay_out_episodes([replace(make_episode(), scene=scene)])
    return replace(layout, scene=replace(layout.scene, bounds=scene.bounds), has_rings=has_rings)


def read_header(payload: bytes) -> dict:
    return json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")])


def test_trail_health_and_death_of_a_unit_are_drawn_where_it_is():
    scene = make_scene(health=0.5)
    field = FieldArtist(FileFigure().subplots(), lay_out(scene), (320, 320))  # 10 pixels are a field unit
    trails, rings, deaths = field.moving[0], field.moving[-6], field.moving[-4]
    field.move(0)
    health = rings.get_segments()[3]  # three gray circles, then the health of each unit
    radius = np.hypot(*health.T)  # of agent 0, which is at (0, 0)
    assert radius.min() > 8, "outside the unit, whose number is inside"
    np.testing.assert_allclose(health[-1], (0, -radius[0]), atol=1e-5)  # half of the circle
    field.move(1)
    ((*_, first),) = deaths.get_segments()
    field.move(1.5)
    steps = np.array(trails.get_segments()).reshape(2, 3, 2, 2)[:, 0]  # of agent 0
    np.testing.assert_allclose(steps, [[(0, 0), (20, 0)], [(20, 0), (30, 0)]])
    ((*_, later),) = deaths.get_segments()
    dead = 10 * scene.position[2, 1]
    assert 0 < np.hypot(*(first - dead)) < np.hypot(*(later - dead))


def test_overlapping_units_are_drawn_apart_with_a_note():
    scene = make_scene()
    crowd = replace(scene, position=np.full_like(scene.position, 16))
    assert np.array_equal(separate_units(scene, 32), scene.position), "units that do not overlap stay"
    apart = separate_units(crowd, 32)
    for frame, alive in enumerate(scene.alive):
        positions = apart[frame, alive]
        distance = np.hypot(*(positions[:, None] - positions[None, :]).T)[~np.eye(len(positions), dtype=bool)]
        assert distance.min() > 0.5
    assert np.array_equal(apart[2:, 1], crowd.position[2:, 1]), "a dead unit stays"
    ball = replace(crowd, team=np.array([0, 0, 2], np.int8))
    assert np.array_equal(separate_units(ball, 32)[:, 2], ball.position[:, 2]), "the ball stays"
    assert MOVED_APART in lay_out(crowd).scene.note
    assert MOVED_APART not in lay_out(scene).scene.note


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_a_unit_is_moved_by_at_most_one_and_a_half_radii(units: int, seed: int):
    rng = np.random.default_rng(seed)
    scene = make_scene(2)
    scene = replace(
        scene,
        position=rng.uniform(0, 3, (2, units, 2)).astype(np.float32),
        alive=rng.random((2, units)) < 0.8,
        team=rng.integers(0, 3, units).astype(np.int8),
        radius=np.full(units, 0.5, np.float32),
    )
    shift = np.abs(separate_units(scene, 14) - scene.position)
    assert shift.max(initial=0) <= 1.5 * 0.5 + 1e-5
    assert not shift[:, scene.team == 2].any()


def test_the_ball_is_drawn_above_a_player_at_the_same_position():
    scene = make_scene()
    team = np.array([0, 2, 2], np.int8)
    scene = replace(scene, position=np.full_like(scene.position, 16), team=team, alive=np.ones((5, 3), bool))
    figure = FileFigure((2, 2), dpi=100)
    field = FieldArtist(figure.add_axes((0, 0, 1, 1)), lay_out(scene), (200, 200))
    field.move(0)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert Image.open(picture).convert("RGB").getpixel((100, 100)) == ImageColor.getrgb(NEUTRAL_COLOR)


def test_the_carrier_of_the_ball_and_its_passes_are_found():
    carrier = np.array(
        [0, 0, -1, 1, 1, 2, 1], np.int16
    )  # a pass from 0 to 1; then the opponent 2 gets it, and loses it
    scene = replace(make_scene(7), carrier=carrier)
    assert find_passes(scene).tolist() == [[1, 3, 0, 1]]
    assert find_passes(make_scene()).shape == (0, 4)
    field = FieldArtist(FileFigure().subplots(), lay_out(scene, has_rings=False), (320, 320))
    pass_lines, carrier_ring = field.moving[1], field.moving[-5]
    for frame, n_passes, n_rings in ((0.5, 0, 1), (2, 1, 0), (4, 1, 1)):
        field.move(frame)
        assert (len(pass_lines.get_segments()), len(carrier_ring.get_segments())) == (n_passes, n_rings)
    (line,) = pass_lines.get_segments()
    np.testing.assert_allclose(line[0], 10 * scene.position[1, 0])
    meta = read_header(make_payload([replace(make_episode(7), scene=scene)]))["meta"]
    assert "player with the ball" in meta["sides"][0]["note"]


def test_a_field_is_cropped_around_the_units_and_inside_its_bounds():
    x0, y0, x1, y1 = crop_field(np.full((4, 2), 10, np.float32), (0, 0, 20, 20))
    assert (x0, x1) == (5.5, 14.5)
    assert 0 <= y0 < 10 < y1 <= 20
    x0, y0, x1, y1 = crop_field(np.zeros((4, 2), np.float32), (0, 0, 20, 20))
    assert (x0, y0) == (0.0, 0.0)
    assert x1 > 8


def test_football_has_a_carrier_of_the_ball_and_a_cropped_pitch():
    states = np.zeros((4, 26), np.float32)
    states[:, :6] = [0.6, 0, 0.7, 0.2, 0.7, -0.2]  # agents
    states[:, 12:16] = [0.9, 0, 0.8, 0]  # opponents
    states[:2, 20:22] = (0.61, 0)
    states[2, 20:22] = (0.65, 0.1)
    states[3, 20:22] = (0.7, 0.19)
    scene = draw_scene("grf", "academy_3_vs_1_with_keeper", states)
    assert scene.carrier.tolist() == [0, 0, -1, 1]
    x0, y0, x1, y1 = crop_field(scene.position.reshape(-1, 2), scene.bounds)
    assert x1 - x0 < 0.7 * (scene.bounds[2] - scene.bounds[0])
    positions = scene.position.reshape(-1, 2)
    assert (positions > (x0, y0)).all()
    assert (positions < (x1, y1)).all()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("position", {0: (4, 5), 0.5: (4, 5), 1: (4, 5), 1.75: (4, 5), 3: (4, 5)}),
        ("presence", {0: 1, 0.5: 1, 1: 1, 1.75: 0.25, 3: 0}),
        ("health", {0: 1, 0.5: 0.7, 1: 0.4, 1.75: 0.1, 3: 0}),
        ("hit", {0: 1, 0.75: 0.25, 1: 1, 1.75: 0.25, 3: 0}),
        ("death", {0: 0, 0.5: 0, 1: 1, 1.5: 0.75, 2: 0.5, 2.5: 0.25, 3: 0}),
    ],
)
def test_a_unit_is_mixed_from_two_frames_while_it_is_hit_and_dies(field: str, values: dict):
    """Agent 1 is hit in the first step and dies in the second one; its position afterwards is not the drawn one."""
    scene = make_scene()
    scene.position[:, 1] = (4, 5)
    scene.position[2:, 1] = (20, 20)
    scene.health[1, 1] = 0.4
    layout = lay_out(scene)
    for frame, value in values.items():
        np.testing.assert_allclose(getattr(mix_frames(layout, frame), field)[1], value, rtol=1e-6, err_msg=str(frame))


def test_a_living_unit_moves_between_two_steps_and_aims_at_living_units():
    layout = lay_out(replace(make_scene(), target=np.zeros((5, 3), np.int16)))
    np.testing.assert_allclose(mix_frames(layout, 1.25).position[0], (2.5, 0))
    np.testing.assert_allclose(mix_frames(layout, 4).position[0], (8, 0))
    assert layout.target[[0, 3]].tolist() == [[0, 0, 0], [0, -1, 0]]


@pytest.mark.parametrize(("frames", "count"), [(1, 1), (61, 181), (200, 200), (1000, 200)])
def test_moments_include_both_ends_of_the_episode_and_are_limited(frames, count):
    moments, duration_ms = choose_moments(frames)
    assert len(moments) == count
    assert (moments[0], moments[-1]) == (0, frames - 1)
    assert 40 <= duration_ms <= 120


def test_two_episodes_have_one_time_axis_one_scale_and_the_values_of_both():
    mixed = replace(make_scene(9), kind=("stalker", "zealot", "zergling"), team=np.zeros(3, np.int8))
    second = replace(make_episode(9, title="</script>"), scene=mixed)
    payload = make_payload([make_episode(5, title="one"), second], start=99)
    header = read_header(payload)
    meta, arrays = header["meta"], {entry["name"]: entry for entry in header["arrays"]}
    assert (meta["frames"], meta["start"]) == (9, 8)
    assert [side["frames"] for side in meta["sides"]] == [5, 9]
    assert [side["title"] for side in meta["sides"]] == ["one", "</script>"]
    assert [side["labels"] for side in meta["sides"]] == [["0", "1", "0"], ["s0", "ze1", "ze2"]]
    assert meta["sides"][0]["bounds"] == meta["sides"][1]["bounds"]
    assert [panel["title"] for panel in meta["panels"]] == ["Δ_mem", "β", "H", "reward", "health", "actions"]
    one, other = meta["panels"][0]["lines"]
    assert (one["name"], one["group"], one["dash"]) == ("A", "A", None)
    assert (other["name"], other["group"]) == ("B", "B")
    assert other["dash"]
    assert (len(one["y"]), len(other["y"])) == (4, 8)
    size = int.from_bytes(payload[:4], "little")
    assert size % 4 == 0
    for name, values in (("1-position", mixed.position), ("1-action", second.actions)):
        entry = arrays[name]
        read = np.frombuffer(payload[4 + size :], entry["dtype"], entry["size"], entry["offset"])
        np.testing.assert_array_equal(read, values.reshape(-1), err_msg=name)
    assert {"0-position", "0-target"} <= arrays.keys()


def test_the_key_of_a_payload_depends_on_its_whole_content():
    def key(*sides: EpisodeView) -> str:
        return read_header(make_payload(sides))["meta"]["key"]

    one, other = make_episode(), make_episode(health=0.5)
    assert key(one) == key(make_episode())
    assert len({key(one), key(other), key(one, other), key(other, one)}) == 4


def test_health_has_a_panel_only_if_a_unit_lost_health():
    unhurt = make_episode()
    unhurt = replace(unhurt, scene=replace(unhurt.scene, health=np.ones((5, 3), np.float32)))
    assert "health" not in [panel.title for panel in join_values([unhurt]).panels]
    assert "health" not in [panel.title for panel in join_values([replace(make_episode(), hides_health=True)]).panels]
    joined = join_values([unhurt, make_episode()])
    assert joined.title.startswith("A: ")
    assert "; B: " in joined.title
    lines = joined.panels[-1].lines
    assert [line.name for line in lines] == ["agents A", "opponents A", "agents B", "opponents B"]
    np.testing.assert_allclose(lines[2].y, [1, 1, 0.5, 0.5])


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (("no-op", "stop", "top left", "attack 3", "shot"), ["no-op", "stop", "move", "attack", "shot"]),
        (tuple(f"act{k}" for k in range(14)), None),
        (ACTION_NAMES, None),
        ((), None),
    ],
)
def test_each_color_of_the_actions_is_one_group_and_one_entry_of_the_legend(names, groups):
    styles = style_actions(names, len(names) or 14)
    assert groups in (None, [style.group for style in styles])
    assert all(style.color is None for style in styles if style.group == "no-op")
    pairs = {(style.group, style.color) for style in styles if style.color}
    assert len(pairs) == len({group for group, _ in pairs}) == len({color for _, color in pairs})
    assert [style.name for style in styles] == list(names or (f"action {k}" for k in range(14)))


def test_each_entry_of_a_state_has_its_own_scale():
    values = np.array([[0, 5, 1, np.nan], [2, 5, 0, 1], [4, 5, 0.5, 3]], np.float32)
    levels = quantize_values(values)
    assert levels[:, 0].tolist() == [0, 127, 254]
    assert levels[:, 1].tolist() == [MISSING] * 3
    assert levels[:, 2].tolist() == [254, 0, 127]
    assert levels[:, 3].tolist() == [MISSING, 0, 254]
    assert quantize_values(np.zeros((3, 0), np.float32)).shape == (3, 0)


@pytest.mark.parametrize(
    ("env", "map", "reason"),
    [
        ("pettingzoo", "tests.core.zoo_example:make", "No picture for this environment"),
        ("pettingzoo", "nonsense", "must have the form module:factory"),
        ("skirmish", "3m", "must have shape"),
    ],
)
def test_states_without_a_drawing_are_a_strip_in_every_format(env, map, reason):
    states = np.random.default_rng(0).random((6, 7), np.float32)
    chart = draw_trajectory(title="e", reward=np.ones(5))
    side = make_side(env, map, states=states, actions=np.ones((5, 2), np.int64), chart=chart, title="e")
    assert reason in side.scene.note
    np.testing.assert_array_equal(side.scene.values, states)
    header = read_header(make_payload([side]))
    assert header["meta"]["sides"][0]["entries"] == [f"state {k}" for k in range(7)]
    assert next(entry for entry in header["arrays"] if entry["name"] == "0-levels")["dtype"] == "u1"
    assert ElementTree.fromstring(draw_image([side], frame=2, format="svg")).tag.endswith("svg")
    assert reason.split()[0] in make_page([side]).decode()


def test_an_invalid_scene_of_a_plugin_is_a_strip(monkeypatch):
    states = np.zeros((5, 3), np.float32)

    def fail(*_: object) -> Scene:
        raise ValueError("zero-size array to reduction operation minimum which has no identity")

    monkeypatch.setattr(episodes, "make_scene", fail)
    assert "ValueError" in draw_scene("pettingzoo", "a:b", states).note
    for broken in (
        make_scene(4),
        replace(make_scene(), position=np.full((5, 3, 2), np.nan, np.float32)),
        replace(make_scene(), team=np.array([0, 1, 7], np.int8)),
        replace(make_scene(), bounds=(0.0, 0.0, 0.0, 1.0)),
        replace(make_scene(), target=np.zeros((5, 2), np.int16)),
    ):
        monkeypatch.setattr(episodes, "make_scene", lambda *_, given=broken: given)
        assert find_fault(broken, 5)
        scene = draw_scene("pettingzoo", "a:b", states)
        assert "returned an invalid scene" in scene.note
        assert scene.values is states


def test_an_animation_has_as_many_frames_as_moments():
    image = Image.open(io.BytesIO(make_gif([make_episode(3), make_episode(4)])))
    assert (image.format, image.n_frames) == ("GIF", len(choose_moments(4)[0]))
    assert image.info["duration"] == choose_moments(4)[1]
    assert len(set(image.convert("RGB").getdata())) > 10


def test_a_frame_as_svg_contains_the_title_the_legend_and_the_source():
    side = make_episode(title="A <b>$5</b> \x1b episode")
    image = draw_image([side, make_episode(9)], frame=99, format="svg", sources=["run abc"])
    assert image == draw_image([side, make_episode(9)], frame=99, format="svg", sources=["run abc"])
    text = "".join(ElementTree.fromstring(image).itertext())
    for text_part in ("t = 8", "A <b>$5</b>", "run abc", "actions", "attack", "opponents", "growing ring: death"):
        assert text_part in text
    assert b"<b>" not in image
    pixels = Image.open(io.BytesIO(draw_image([side], frame=2, format="png", sources=["run abc"])))
    assert pixels.info["Keywords"] == "run abc"


def test_a_page_contains_its_data_and_loads_nothing():
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    side = replace(make_episode(title=hostile), scene=replace(make_scene(), note=hostile))
    page = make_page([side], start=2, sources=[hostile]).decode()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert not re.search(r"https?://|src=|@import|url\(", page.replace("src=x onerror", ""))
    assert "default-src 'none'" in page
    packed = re.search(r'id="data">([^<]*)<', page)
    assert packed
    assert base64.b64decode(packed[1]) == make_payload([side], start=2)


@pytest.mark.parametrize("name", ["", "1-2-3", "9" * 30])
def test_an_invalid_name_of_an_episode_is_refused(name):
    with raises(ConfigError, key="episode", value=name):
        read_replays(None, [("run", name)])  # type: ignore[arg-type]
