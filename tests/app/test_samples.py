"""The example study contains samples of its memories: every number names its part, and nothing is computed without it.

The expected numbers were read from the stored arrays and from `gate_stats` by SQL.
"""

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.collapse import measure_collapse
from app.analysis.findings import describe_samples, read_studies
from app.analysis.neighborhoods import find_outliers
from app.analysis.results import select_runs
from app.analysis.samples import describe_nodes, describe_whole
from app.analysis.what_if import (
    WhatIfSettings,
    compute_gate_means,
    evaluate_what_if,
    merge_nodes,
    read_gate_settings,
    read_recorded_transitions,
    tabulate_what_if,
)
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.runs.rows import find_run

RUN = "f6v55eh5"
SAMPLE = "5,989 of 970,657 nodes, a sample from 37 of 8,612 episodes"


@pytest.fixture(scope="module")
def snapshots(shipped: Database) -> list[Snapshot]:
    return [get_snapshot(shipped, int(snapshot_id)) for snapshot_id in list_snapshots(shipped, RUN)["id"]]


def test_a_sample_names_the_memory_that_it_is_a_part_of(snapshots: list[Snapshot]) -> None:
    first, last = snapshots[0], snapshots[-1]
    assert describe_nodes(last.size, last) == SAMPLE
    assert describe_whole(last).startswith("The whole memory at env step 1,000,037: 970,657 nodes, 12.5 % desirable")
    assert describe_whole(last).count("Δ̄_mem") == describe_whole(last).count("β̄") == 1
    # counted 1,181 env steps before this snapshot
    assert describe_nodes(first.size, first).startswith("5,986 of at least 239,591 nodes")
    assert find_outliers(last, last.embedding)[0].searched == "5,989 of 970,657 nodes"
    assert describe_nodes(9, replace(last, whole=None)) == "9 of 5,989 nodes"


def test_what_if_uses_the_recorded_errors_of_all_links_of_a_sample(shipped, snapshots: list[Snapshot]) -> None:
    run, snapshot = find_run(shipped, RUN), snapshots[-1]
    rules = read_gate_settings(run.config)
    stream = read_recorded_transitions(shipped, RUN, rules, until=snapshot.env_step)
    result = evaluate_what_if(snapshot, stream, rules, WhatIfSettings(tau_factor=0.5))
    (links,) = result.sets
    recorded, recomputed = compute_gate_means(links.recorded), compute_gate_means(links.recomputed)
    assert recorded.n == 5952
    assert recorded.delta_mem == pytest.approx(0.0012932358)
    assert recorded.closed * recorded.n == pytest.approx(4)
    assert recomputed.beta < recorded.beta
    assert np.isnan([recorded.removed, recomputed.removed]).all()
    assert SAMPLE in tabulate_what_if(result).caption
    with pytest.raises(ConfigError, match="delta_factor needs a whole snapshot"):
        merge_nodes(snapshot, rules, 1.0)


def test_a_sample_does_not_decide_whether_an_embedding_has_collapsed(snapshots: list[Snapshot]) -> None:
    sample = measure_collapse(snapshots[-1], delta=1.8e-5)
    whole = measure_collapse(replace(snapshots[-1], whole=None), delta=1.8e-5)
    assert {number.name for number in whole.numbers} - {number.name for number in sample.numbers} == {
        "h_r2_delta", "delta_far_share", "delta_reached"
    }  # fmt: skip
    assert whole.verdict.startswith("No: neighbors predict H")
    assert sample.verdict.startswith("In this sample, neighbors predict H")


def test_findings_name_the_samples_of_r2(shipped: Database) -> None:
    study = read_studies(shipped, select_runs(shipped))[0]
    expected = "R² of H is computed from samples of 5,800 to 5,989 of 187,480 to 979,139 nodes (8 runs)."
    assert describe_samples(shipped, study) == expected
