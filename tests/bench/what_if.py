"""Response time of the panel *What if* after a slider was moved: 200,000 transitions, a memory of 200,000 nodes.

Measured: the gate of each transition, the table and the data of the figure. Not measured: the network transfer.
"""

from dataclasses import replace

import numpy as np

from app.analysis.what_if import (
    GateSettings,
    RecordedTransitions,
    WhatIfSettings,
    evaluate_what_if,
    merge_nodes,
    read_gate_settings,
    read_recorded_transitions,
    tabulate_what_if,
)
from app.figures.named.what_if import draw_what_if
from storage.queries.memory import Snapshot
from storage.runs.changes import create_run
from tests.bench.timing import median_ms
from tests.records import CONFIG, fill_transitions, temporary_database
from tests.report import BenchResult, make_result

TRANSITIONS = NODES = 200_000
DELTA = 1e-3  # almost no random embeddings merge; with delta × 1,000 only a few hundred nodes remain
FACTORS = (1.0, 10.0, 100.0, 300.0, 1000.0)
_REPEATS = 7


def run() -> list[BenchResult]:
    """Measure `what_if.tau_ms.200000`, `what_if.delta_ms.200000` and `what_if.read_ms.200000`."""
    rules = read_gate_settings({"memory": {"delta": DELTA}})
    snapshot = make_snapshot(NODES)
    with temporary_database() as db:
        run_id = create_run(db, CONFIG, target_steps=TRANSITIONS, versions={})
        fill_transitions(db, run_id, TRANSITIONS)
        read_ms = median_ms(lambda: read_recorded_transitions(db, run_id, rules, until=TRANSITIONS), _REPEATS)
        stream = _assign_random_slots(read_recorded_transitions(db, run_id, rules, until=TRANSITIONS))
    merge_nodes(make_snapshot(100), rules, 1.0)  # compile the kernel before the measurement

    def compute_ms(settings: WhatIfSettings) -> float:
        return median_ms(lambda: compute_answer(snapshot, stream, rules, settings), _REPEATS)

    tau_ms = compute_ms(WhatIfSettings(tau_factor=0.5))
    delta_ms = max(compute_ms(WhatIfSettings(delta_factor=factor)) for factor in FACTORS)
    return [
        _make_result("tau", tau_ms, 300, f"another tau, {TRANSITIONS:,} transitions and {NODES:,} nodes"),
        _make_result("delta", delta_ms, 2000, f"{NODES:,} nodes merged; the slowest of {len(FACTORS)} deltas"),
        _make_result("read", read_ms, 2000, f"{TRANSITIONS:,} transitions from SQLite, once per snapshot"),
    ]


def compute_answer(
    snapshot: Snapshot, stream: RecordedTransitions, rules: GateSettings, settings: WhatIfSettings
) -> object:
    """Compute the table and the figure that the page shows after one move of a slider."""
    factor = settings.delta_factor
    merged = None if factor is None else merge_nodes(snapshot, rules, factor)
    answer = evaluate_what_if(snapshot, stream, rules, settings, merged=merged)
    return tabulate_what_if(answer), draw_what_if(answer, run="bench", env_step=snapshot.env_step).to_component()


def make_snapshot(nodes: int) -> Snapshot:
    """Make a synthetic memory of episodes with 100 steps."""
    rng = np.random.default_rng(0)
    row = np.arange(nodes)
    is_last = (row % 100 == 99) | (row == nodes - 1)
    delta_mem = np.where(is_last, np.nan, rng.gamma(1.0, 0.3, nodes)).astype(np.float32)
    return Snapshot(
        id=1, run_id="bench", env_step=nodes, slot=row, embedding=rng.normal(size=(nodes, 4)).astype(np.float32),
        h=rng.gamma(2.0, 3.0, nodes).astype(np.float32), xi=rng.random(nodes) < 0.4,
        n_call=np.full(nodes, 2, np.int32), n_xi=rng.integers(0, 3, nodes).astype(np.int32),
        t=(row % 100).astype(np.int32), reward=rng.random(nodes).astype(np.float32),
        idx_next=np.where(is_last, -1, row + 1), episode=1 + row // 100,
        delta_mem=delta_mem, beta=np.exp(-(delta_mem**2) / 2).astype(np.float32),
        state_rows=np.zeros(0, np.int64), state=np.zeros((0, 1), np.float16),
        age=(nodes - row).astype(np.float32),
    )  # fmt: skip


def _assign_random_slots(stream: RecordedTransitions) -> RecordedTransitions:
    """Replace the slots of the transitions by random slots of the memory: the synthetic transitions have no nodes."""
    rng = np.random.default_rng(1)
    slot, next_slot = rng.integers(0, NODES, (2, len(stream.slot)))
    return replace(stream, slot=slot, next_slot=next_slot)


def _make_result(name: str, value: float, budget: float, reference: str) -> BenchResult:
    return make_result(f"what_if.{name}_ms.{TRANSITIONS}", value, "ms", budget, reference)
