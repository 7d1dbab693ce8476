"""`python -m app.warmup`: fill numba's on-disk caches before somebody waits for them."""

import os

import numpy as np


def main() -> None:
    """Step the demo's environment once and lay out a small projection."""
    if hasattr(os, "nice"):
        os.nice(10)
    from app.projections.methods import compute
    from emtc_core.config.resolve import resolve
    from emtc_core.envs.registry import make_env

    config = resolve(preset="demo")
    env = make_env(config.env, n_envs=config.train.n_envs)
    first = env.reset(seed=0)
    env.step(np.argmax(first.avail, axis=-1))
    env.close()
    points = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    compute("umap", points, seed=0)


if __name__ == "__main__":
    main()
