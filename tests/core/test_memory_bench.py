"""The benchmarks of memory and embedder run and name their figures as the contract says."""

from tests.bench import embedder, memory


def test_memory_figures_carry_the_contract_names_and_a_verdict() -> None:
    figures = {row["name"]: row for row in memory.run((400,))}
    assert {"memory.write_episode_ms.400", "memory.lookup_per_second.400"} <= set(figures)
    for row in figures.values():
        assert set(row) == {"name", "value", "unit", "budget", "met", "reference"}
        assert row["value"] > 0
        assert isinstance(row["met"], bool)


def test_embedder_figures_carry_the_contract_name() -> None:
    names = [row["name"] for row in embedder.run((400,))]
    assert names == ["embedder.cycle_seconds.400", "embedder.reproject_seconds.400"]
