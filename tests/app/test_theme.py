"""One colour for each algorithm, measured: contrast on both backgrounds, and distance for three kinds of eyes."""

from itertools import combinations

import numpy as np
import pytest

from app.figures.color_math import luminance, make_text_color
from app.figures.theme import (
    MARKERS,
    METHOD_STYLES,
    OKABE_ITO,
    OTHER_COLORS,
    VIRIDIS_ON_DARK,
    Style,
    get_theme_colors,
    make_styles,
)

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


PAPER = {
    "EMTC": ("emtc-qplex", ""),
    "No-TCGM": ("emtc-qplex", "gate.enabled = false"),
    "No-TCSE": ("emtc-qplex", "embed.type = dcae"),
    **{name: (key, "") for name, key in (("EMU", "emu-qplex"), ("QPLEX", "qplex"), ("EMC", "emc"))},
    **{name: (name.lower(), "") for name in ("CDS", "DMIX", "MAPPO")},
}
"""The lines of the paper's comparisons."""
IMPORTS = {f"algorithm {k}": (f"algorithm {k} (imported = paper)", "imported") for k in range(12)}
ABLATIONS = {f"k{k}": ("emtc-qplex", f"memory.delta = {k}") for k in range(20)}
LENGTHS = {f"emtc-qplex, {steps} steps": ("emtc-qplex", "") for steps in ("1M", "500k", "250k")}
ABLATED_LENGTHS = {key: (algo, "memory.delta = 1") for key, (algo, _) in LENGTHS.items()}

METHODS = list(combinations(METHOD_STYLES.values(), 2))
SAME_DASH = [(one, other) for one, other in METHODS if one.dash == other.dash]
OTHERS = list(combinations([Style(color) for color in OTHER_COLORS], 2))
OTHERS_AND_METHODS = [(Style(color), style) for color in OTHER_COLORS for style in METHOD_STYLES.values()]
PAIRS = list(combinations(make_styles(PAPER).values(), 2))
_NAMED = {key: PAPER[key] for key in ("EMTC", "No-TCGM", "No-TCSE", "EMU", "QPLEX")}
_COLORS = sorted({style.color for style in make_styles(ABLATIONS).values()})
_COLORS += [style.color for style in make_styles(_NAMED).values()]
ABLATIONS_AND_PAPER = list(combinations(map(Style, _COLORS), 2))


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_color_and_every_shade_has_a_contrast_of_three_to_one(mode) -> None:
    background = get_theme_colors(mode)[1]
    variants = {f"{algo} {k}": (algo, f"memory.delta = {k}") for algo in METHOD_STYLES for k in range(9)}
    shades = [style.color for style in (METHOD_STYLES | make_styles(variants)).values()]
    for color in [*OTHER_COLORS, *shades, *(VIRIDIS_ON_DARK if mode == "dark" else ())]:
        assert contrast(color, background) >= 3, color


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_in_the_color_of_a_line_has_a_contrast_of_four_and_a_half_to_one(mode) -> None:
    background = get_theme_colors(mode)[1]
    for color in [*OTHER_COLORS, *OKABE_ITO, *(style.color for style in METHOD_STYLES.values())]:
        assert contrast(make_text_color(color, background), background) >= 4.5, color


@pytest.mark.parametrize(
    ("pairs", "eye", "least"),
    [
        pytest.param(METHODS, None, 0.1, id="algorithms"),
        *(pytest.param(METHODS, eye, 0.035, id=f"algorithms-{eye}") for eye in EYES),
        *(pytest.param(SAME_DASH, eye, 0.09, id=f"same-dash-{eye}") for eye in EYES),
        pytest.param(OTHERS, None, 0.13, id="others"),
        *(pytest.param(OTHERS, eye, 0.06, id=f"others-{eye}") for eye in EYES),
        pytest.param(OTHERS_AND_METHODS, None, 0.06, id="others-and-algorithms"),
        *(pytest.param(PAIRS, eye, 0.045, id=f"paper-{eye}") for eye in ("protanopia", "deuteranopia")),
        pytest.param(ABLATIONS_AND_PAPER, None, 0.13, id="ablations-and-paper"),
    ],
)
def test_colors_of_one_chart_are_far_apart_for_every_kind_of_eyes(pairs, eye, least) -> None:
    assert min(distance(one.color, other.color, eye) for one, other in pairs) > least


def hue(color: str) -> float:
    _, a, b = oklab(linear(color))
    return float(np.degrees(np.arctan2(b, a)))


def test_the_lines_of_the_papers_comparisons_have_distinct_hues() -> None:
    assert min(abs((hue(a.color) - hue(b.color) + 180) % 360 - 180) for a, b in PAIRS) > 14


def test_in_greyscale_the_lines_of_the_paper_differ_in_lightness_or_dash() -> None:
    same_dash = [(a, b) for a, b in PAIRS if a.dash == b.dash]
    assert len(same_dash) == 6, "EMTC with two ablations, and three backbones"
    assert min(abs(oklab(linear(a.color))[0] - oklab(linear(b.color))[0]) for a, b in same_dash) > 0.04


def test_the_dash_says_the_method_also_of_another_algorithm() -> None:
    styles = make_styles({name: (name, "") for name in (*METHOD_STYLES, "emtc-softmix", "emu-softmix")})
    assert {style.dash for algo, style in styles.items() if algo.startswith("emtc-")} == {None}
    assert {style.dash for algo, style in styles.items() if algo.startswith("emu-")} == {(7, 4)}
    assert {styles[algo].dash for algo in ("qplex", "cds", "qmix", "vdn", "dmix")} == {(2, 3)}


def test_twelve_imported_algorithms_have_their_own_colors_and_hardly_repeat_a_marker() -> None:
    styles = list(make_styles(IMPORTS | {"ours": ("emtc-qplex", ""), "qmix": ("qmix", "")}).values())
    imported = [style for style in styles if style.color in OTHER_COLORS]
    assert len({style.color for style in imported}) == 12
    assert len({style.dash for style in imported}) == 4
    assert len({style.marker for style in imported}) == len(MARKERS) == 9


@pytest.mark.parametrize(
    ("lines", "company"),
    [
        pytest.param({key: IMPORTS[key] for key in ("algorithm 1", "algorithm 2")}, {}, id="imported"),
        pytest.param({"qmix": ("qmix", ""), "emtc-qplex": ("emtc-qplex", "")}, ABLATIONS, id="algorithms"),
        pytest.param(PAPER, ABLATIONS, id="paper"),
        pytest.param({f"k{k}": ABLATIONS[f"k{k}"] for k in range(4)}, {"cds": ("cds", "")}, id="ablations"),
        pytest.param({"emtc-qplex, 1M steps": ("emtc-qplex", "memory.delta = 1")}, ABLATED_LENGTHS, id="longest"),
    ],
)
def test_a_line_has_the_same_style_alone_and_in_every_company(lines, company) -> None:
    together = make_styles(company | lines)
    alone = {key: make_styles({key: method})[key] for key, method in lines.items()}
    assert {key: together[key] for key in lines} == alone


@pytest.mark.parametrize(
    "methods",
    [IMPORTS, ABLATIONS, LENGTHS, ABLATED_LENGTHS],
    ids=["imported", "ablations", "lengths", "ablated lengths"],
)
def test_all_lines_have_different_styles_in_any_order(methods) -> None:
    styles = make_styles(methods)
    assert len(set(styles.values())) == len(methods)
    assert make_styles(dict(reversed(methods.items()))) == styles


@pytest.mark.parametrize("methods", [LENGTHS, ABLATED_LENGTHS], ids=["algorithm", "ablation"])
def test_variants_that_differ_only_in_their_training_length_have_clearly_different_colors(methods) -> None:
    styles = make_styles(methods).values()
    assert len({style.marker for style in styles}) == 3
    assert min(distance(a.color, b.color) for a, b in combinations(styles, 2)) > 0.14
