"""Check of an embedder that is a plug-in."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.plugin import PluginEmbedder
from emtc_core.memory.memory import NodeSample
from emtc_core.plugins import Plugin
from emtc_core.training.conformance.rules import INFO, RuleResult, check_rule, require


def check_embedder(plugin: Plugin, settings: Sequence[str]) -> Iterator[RuleResult]:
    """Check the rules of an embedder. It has no arguments, so `settings` is not used."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(50, INFO.state_dim)).astype(np.float32)
    t, h = np.arange(50, dtype=np.int32) % 20, rng.normal(size=50)
    config = EmbedConfig(type=plugin.name)

    def make() -> PluginEmbedder:
        sizes: dict[str, Any] = {"state_dim": INFO.state_dim, "episode_limit": INFO.episode_limit, "device": "cpu"}
        return PluginEmbedder(plugin, config, **sizes, seed=3)

    def make_fitted() -> PluginEmbedder:
        embedder = make()
        embedder.fit(NodeSample(state, t, h))
        return embedder

    def embed(embedder: PluginEmbedder, rows: slice = slice(None)) -> Any:
        return embedder.embed(state[rows], t[rows]).numpy()

    def check_finite(embedder: PluginEmbedder) -> None:
        require(np.isfinite(embed(embedder)).all(), "The embedding contains NaN or infinity.")

    def check_rows() -> None:
        embedder = make()
        same = np.array_equal(embed(embedder)[10:20], embed(embedder, slice(10, 20)))
        require(same, "The same rows in a smaller batch have another embedding, so a lookup can miss its own node.")

    def check_seed() -> None:
        same = np.array_equal(embed(make_fitted()), embed(make_fitted()))
        require(same, "Two embedders with one seed give different embeddings.")

    def check_restored() -> None:
        fitted, restored = make_fitted(), make()
        restored.set_state(fitted.get_state())
        require(np.array_equal(embed(fitted), embed(restored)), "A restored embedder gives different embeddings.")

    yield check_rule("it embeds [M, S] into finite [M, embed.dim]", lambda: check_finite(make()))
    yield check_rule("a row's embedding does not depend on the others", check_rows)
    yield check_rule("the embedding depends only on the seed and the data", check_seed)
    yield check_rule("it embeds after a refit", lambda: check_finite(make_fitted()))
    if hasattr(plugin.load(), "get_state") or hasattr(plugin.load(), "set_state"):
        yield check_rule("set_state restores it", check_restored)
