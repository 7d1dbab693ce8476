"""The paper's numbers as data: complete, where they belong, and labelled for what they are."""

import numpy as np

from app.analysis.published import list_published_maps, read_published, tabulate_with_published
from tests.app.curve_cases import join, make_run


def test_every_published_win_rate_is_there() -> None:
    known = read_published()
    assert len(list_published_maps()) == 9
    assert len({key for key in known if key[0] == "smac"}) == 42
    assert len({key for key in known if key[0] == "grf"}) == 21
    assert str(known["smac", "6h_vs_8z", "emtc-qplex"]) == "75.0 ± 4.8"
    assert str(known["grf", "academy_counterattack_hard", "qmix"]) == "25.6 ± 6.8"
    numbers = np.array([(each.mean, each.std) for each in known.values()])
    assert ((numbers[:, 0] >= 0) & (numbers[:, 0] <= 100) & (numbers[:, 1] < 10)).all()


def test_ours_and_the_papers_stand_side_by_side_and_the_caption_warns() -> None:
    seeds = [
        make_run("a", [(1, 0.5)], map="corridor"),
        make_run("b", [(1, 0.25)], "gate.enabled=false", map="corridor"),
        make_run("c", [(1, 1.0)], map="3m"),
        make_run("d", [(1, 1.0)], map="corridor", algo="qplex", status="lost", env_steps=1),
        make_run("e", [(1, 1.0)], map="corridor", preset="demo"),
    ]
    table = tabulate_with_published(join(seeds, for_final_numbers=True))
    assert table.frame.columns.tolist() == ["variant", "corridor · ours", "corridor · paper"]
    rows = table.frame.set_index("variant")
    assert rows.loc["EMTC(QPLEX)"].tolist() == ["50.0 (1 seed)", "97.4 ± 1.7"]
    assert rows.loc["EMTC(QPLEX), No-TCGM"].tolist() == ["25.0 (1 seed)", "–"]
    assert rows.loc["EMTC(QPLEX), preset = demo"].tolist() == ["100.0 (1 seed)", "–"]
    assert rows.loc["QMIX"].tolist() == ["–", "37.6 ± 9.8"]
    assert rows.loc["QPLEX"].tolist()[0] == "–"
    assert "skirmish is a simulator" in table.caption
    assert "run d (QPLEX on corridor; seed 1): lost at 1 of 1,000 env steps" in table.excluded
