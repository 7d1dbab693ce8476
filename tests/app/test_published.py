"""The paper's numbers as data: complete, where they belong, and labelled for what they are."""

import numpy as np
import pandas as pd

from app.comparison import group_curves
from app.paper.published import list_published_maps, read_published, tabulate_beside_published
from emtc_core.config.resolve import resolve


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
    configs = {
        "a": resolve(map="corridor").model_dump(mode="json"),
        "b": resolve(map="corridor", overrides=["gate.enabled=false"]).model_dump(mode="json"),
        "c": resolve(map="3m").model_dump(mode="json"),
    }
    frame = pd.DataFrame({"run_id": ["a", "b", "c"], "env_step": 1, "win_rate": [0.5, 0.25, 1.0]})
    table = tabulate_beside_published(group_curves(configs, frame))
    assert table.columns.tolist() == ["variant", "corridor · ours", "corridor · paper"]
    rows = table.set_index("variant")
    assert rows.loc["emtc-qplex"].tolist() == ["50.0 (n = 1)", "97.4 ± 1.7"]
    assert rows.loc["emtc-qplex (gate.enabled = false)"].tolist() == ["25.0 (n = 1)", "–"]
    assert rows.loc["qmix"].tolist() == ["–", "37.6 ± 9.8"]
    assert "skirmish is a simulator" in table.attrs["caption"]


def test_maps_without_published_numbers_give_no_table() -> None:
    configs = {"c": resolve(map="3m").model_dump(mode="json")}
    frame = pd.DataFrame({"run_id": ["c"], "env_step": 1, "win_rate": 1.0})
    assert tabulate_beside_published(group_curves(configs, frame)).empty
