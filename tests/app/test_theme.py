"""One colour for each algorithm, measured: contrast on both backgrounds, and distance for three kinds of eyes."""

from itertools import combinations

import numpy as np
import pytest

from app.figures.color_math import luminance, make_text_color, set_luminance
from app.figures.mathtext import format_mathtext
from app.figures.theme import (
    MARKERS,
    METHOD_STYLES,
    OKABE_ITO,
    OTHER_COLORS,
    VIRIDIS_ON_DARK,
    get_theme_colors,
    make_styles,
)
from emtc_core.config.run import list_algos

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
EYES = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(color: str) -> np.ndarray:
    part = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Björn Ottosson's space: 0.02 is a just noticeable difference."""
    return OKLAB @ np.cbrt(LMS @ np.clip(rgb, 0, 1))


def distance(one: str, other: str, eye: str | None = None) -> float:
    seen = np.array(EYES[eye]) if eye else np.eye(3)
    return float(np.linalg.norm(oklab(seen @ linear(one)) - oklab(seen @ linear(other))))


def contrast(color: str, background: str) -> float:
    light, dark = sorted((luminance(color), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_seventeen_algorithms_have_a_color_and_no_two_share_one() -> None:
    assert set(METHOD_STYLES) <= set(list_algos()), (
        "a mixer that is added later has one of OTHER_COLORS until METHOD_STYLES contains it"
    )
    assert len(METHOD_STYLES) == 17
    assert len({style.color for style in METHOD_STYLES.values()}) == 17


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_color_and_every_shade_has_a_contrast_of_three_to_one(mode) -> None:
    background = get_theme_colors(mode)[1]
    variants = {f"{algo} {k}": (algo, f"memory.delta = {k}") for algo in METHOD_STYLES for k in range(9)}
    for color in [*OTHER_COLORS, *(style.color for style in (METHOD_STYLES | make_styles(variants)).values())]:
        assert contrast(color, background) >= 3


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_in_the_color_of_a_line_has_a_contrast_of_four_and_a_half_to_one(mode) -> None:
    background = get_theme_colors(mode)[1]
    for color in [*OTHER_COLORS, *OKABE_ITO, *(style.color for style in METHOD_STYLES.values())]:
        assert contrast(make_text_color(color, background), background) >= 4.5


def test_any_two_colors_are_far_apart() -> None:
    assert min(distance(a.color, b.color) for a, b in combinations(METHOD_STYLES.values(), 2)) > 0.1


@pytest.mark.parametrize("eye", list(EYES))
def test_colors_that_share_a_dash_are_told_apart_without_one_kind_of_cones(eye) -> None:
    pairs = [(a, b) for a, b in combinations(METHOD_STYLES.values(), 2) if a.dash == b.dash]
    assert len(pairs) > 20
    assert min(distance(a.color, b.color, eye) for a, b in pairs) > 0.09


@pytest.mark.parametrize("eye", list(EYES))
def test_no_two_colors_fall_together_without_one_kind_of_cones(eye) -> None:
    assert min(distance(a.color, b.color, eye) for a, b in combinations(METHOD_STYLES.values(), 2)) > 0.035


def test_the_dash_says_the_method() -> None:
    dashes = {algo: style.dash for algo, style in METHOD_STYLES.items()}
    assert {dashes[algo] for algo in METHOD_STYLES if algo.startswith("emtc-")} == {None}
    assert {dashes[algo] for algo in METHOD_STYLES if algo.startswith("emu-")} == {(7, 4)}
    assert {dashes[algo] for algo in ("qplex", "cds", "qmix", "vdn", "dmix")} == {(2, 3)}


def test_another_algorithm_has_the_dash_of_its_method() -> None:
    styles = make_styles({name: (name, "") for name in ("emtc-softmix", "emu-softmix")})
    assert [style.dash for style in styles.values()] == [None, (7, 4)]
    assert all(style.color in OTHER_COLORS and not style.marker for style in styles.values())


IMPORTS = {f"algorithm {k}": (f"algorithm {k} (imported = paper)", "imported") for k in range(12)}


def test_twelve_imported_algorithms_have_their_own_colors_and_hardly_repeat_a_marker() -> None:
    styles = list(make_styles(IMPORTS | {"ours": ("emtc-qplex", ""), "qmix": ("qmix", "")}).values())
    imported = [style for style in styles if style.color in OTHER_COLORS]
    assert len({style.color for style in imported}) == 12
    assert len({style.dash for style in imported}) == 4
    assert len({style.marker for style in imported}) == len(MARKERS) == 9


def test_the_style_of_an_imported_algorithm_belongs_to_its_name() -> None:
    styles = make_styles(IMPORTS)
    assert make_styles(dict(reversed(IMPORTS.items()))) == styles
    alone = {name: make_styles({name: key})[name] for name, key in IMPORTS.items()}
    assert len(set(alone.values())) > 6
    pair = ["algorithm 1", "algorithm 2"]
    assert make_styles({name: IMPORTS[name] for name in pair}) == {name: alone[name] for name in pair}


def test_colors_of_other_algorithms_are_far_apart_also_from_ours() -> None:
    assert min(distance(a, b) for a, b in combinations(OTHER_COLORS, 2)) > 0.13
    assert min(distance(a, style.color) for a in OTHER_COLORS for style in METHOD_STYLES.values()) > 0.06


@pytest.mark.parametrize("eye", list(EYES))
def test_colors_of_other_algorithms_are_told_apart_without_one_kind_of_cones(eye) -> None:
    assert min(distance(a, b, eye) for a, b in combinations(OTHER_COLORS, 2)) > 0.06


ABLATION = ("emtc-qplex", "gate.enabled = false")


def test_a_color_belongs_to_its_line_whatever_stands_beside_it() -> None:
    alone = make_styles({"a": ABLATION, "qmix": ("qmix", "")})
    among = make_styles(
        {"a": ABLATION, "qmix": ("qmix", ""), "cds": ("cds", ""), "emtc-qplex": ("emtc-qplex", "")}
        | {f"{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(15)}
    )
    assert alone["qmix"] == among["qmix"] == METHOD_STYLES["qmix"]
    assert among["emtc-qplex"] == METHOD_STYLES["emtc-qplex"]
    assert alone["a"][:2] == among["a"][:2]
    assert alone["a"].color != METHOD_STYLES["emtc-qplex"].color
    assert len(set(among.values())) == 19


@pytest.mark.parametrize("changes", ["", "gate.enabled = false", "memory.delta = 1"])
def test_variants_that_differ_only_in_their_training_length_have_different_colors(changes) -> None:
    lengths = {f"emtc-qplex, {steps} steps": ("emtc-qplex", changes) for steps in ("1M", "500k", "250k")}
    styles = make_styles(lengths)
    assert len({style.color for style in styles.values()}) == len({style.marker for style in styles.values()}) == 3
    assert min(distance(a.color, b.color) for a, b in combinations(styles.values(), 2)) > 0.14
    assert make_styles(dict(reversed(lengths.items()))) == styles
    assert styles["emtc-qplex, 1M steps"] == make_styles({"emtc-qplex": ("emtc-qplex", changes)})["emtc-qplex"]


def test_many_ablations_are_all_told_apart_in_any_order() -> None:
    names = {f"k{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(20)}
    assert len(set(make_styles(names).values())) == 20
    assert make_styles(names) == make_styles(dict(reversed(names.items())))


def test_shades_change_the_light_and_keep_the_hue() -> None:
    for light in (0.126, 0.175, 0.295):
        assert luminance(set_luminance("#D55E00", light)) == pytest.approx(light, abs=0.003)
    assert set_luminance("#D55E00", luminance("#D55E00")) == "#D55E00"


def test_every_value_of_the_map_is_visible_on_the_dark_background():
    background = luminance(get_theme_colors("dark")[1])
    levels = [luminance(color) for color in VIRIDIS_ON_DARK]
    assert levels == sorted(levels)
    assert (levels[0] + 0.05) / (background + 0.05) >= 3


PAPER = {
    "EMTC": ("emtc-qplex", ""),
    "No-TCGM": ("emtc-qplex", "gate.enabled = false"),
    "No-TCSE": ("emtc-qplex", "embed.type = dcae"),
    **{name: (key, "") for name, key in (("EMU", "emu-qplex"), ("QPLEX", "qplex"), ("EMC", "emc"))},
    **{name: (name.lower(), "") for name in ("CDS", "DMIX", "MAPPO")},
}
"""The lines of the paper's comparisons."""
PAIRS = list(combinations(make_styles(PAPER).values(), 2))


def hue(color: str) -> float:
    _, a, b = oklab(linear(color))
    return float(np.degrees(np.arctan2(b, a)))


def test_the_lines_of_the_papers_comparisons_have_distinct_hues() -> None:
    assert min(distance(a.color, b.color) for a, b in PAIRS) > 0.1
    assert min(abs((hue(a.color) - hue(b.color) + 180) % 360 - 180) for a, b in PAIRS) > 14


@pytest.mark.parametrize("eye", ["protanopia", "deuteranopia"])
def test_they_are_told_apart_without_red_or_green_cones(eye) -> None:
    assert min(distance(a.color, b.color, eye) for a, b in PAIRS) > 0.045


def test_in_greyscale_they_differ_in_lightness_or_dash() -> None:
    same_dash = [(a, b) for a, b in PAIRS if a.dash == b.dash]
    assert len(same_dash) == 6, "EMTC with two ablations, and three backbones"
    assert min(abs(oklab(linear(a.color))[0] - oklab(linear(b.color))[0]) for a, b in same_dash) > 0.04


def test_an_ablation_of_the_paper_has_the_same_style_in_every_company() -> None:
    others = {f"{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(40)}
    styles = make_styles(others | PAPER)
    assert {name: styles[name] for name in PAPER} == make_styles(PAPER)
    assert make_styles({"x": PAPER["No-TCGM"]})["x"] == styles["No-TCGM"]


def test_variants_of_emtc_are_distinct_from_the_ablations_and_the_algorithms_of_the_paper() -> None:
    variants = make_styles({f"{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(20)})
    colors = {style.color for style in variants.values()}
    names = ("EMTC", "No-TCGM", "No-TCSE", "EMU", "QPLEX")
    paper = [style.color for name, style in make_styles(PAPER).items() if name in names]
    assert min(distance(a, b) for a, b in combinations([*colors, *paper], 2)) > 0.13


def test_a_variant_changes_its_style_only_if_another_line_has_the_same_one() -> None:
    variants = {f"{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(4)}
    alone = {key: make_styles({key: variant})[key] for key, variant in variants.items()}
    together = make_styles(variants)
    assert len(set(alone.values())) == 4
    assert together == alone


def test_a_symbol_after_a_greek_letter_is_a_formula_as_it_is_elsewhere() -> None:
    assert format_mathtext("|r + γV*(s′) − V*(s)|") == r"|r + $\gamma$$V^{*}$(s′) − $V^{*}$(s)|"
    assert format_mathtext("SHARK H*") == r"SHARK $H^{*}$"
