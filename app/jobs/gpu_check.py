"""Compare a GPU with the CPU in a few seconds: a matrix product and an embedding of the memory.

`emtc doctor` runs this module in another process and reads the line of JSON that it prints. The JSON object contains
the name of the GPU and a list of `[quantity, is correct, detail]`. It is empty if torch finds no GPU. `pytest -m gpu`
in a checkout compares more.
"""

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor

LIMIT = 1e-4
"""Largest allowed distance of the two results, relative to the norm of the result of the CPU."""
_N_STATES = 151
_STATE_DIM = 68
"""Sizes of an episode of the map 3s_vs_5z."""


def main() -> None:
    """Print the results as JSON."""
    report = {}
    if torch.cuda.is_available():
        device = torch.device("cuda")
        quantities = {"product": multiply, "embedding": embed}
        results = [[name, *compare(compute, device)] for name, compute in quantities.items()]
        report = {"name": torch.cuda.get_device_name(device), "results": results}
    sys.stdout.write(f"{json.dumps(report)}\n")


def compare(compute: Callable[[torch.device], Tensor], device: torch.device) -> tuple[bool, str]:
    """Return whether a device computes the same result as the CPU, and a text with the difference."""
    expected = compute(torch.device("cpu")).double()
    try:
        actual = compute(device).cpu().double()
    except Exception as exc:  # a kernel of the device can raise any exception
        return False, f"{type(exc).__name__}: {exc}".partition("\n")[0]
    difference = float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected))
    return difference <= LIMIT, f"relative difference from the CPU {difference:.1e} (at most {LIMIT:.0e})"


def multiply(device: torch.device) -> Tensor:
    """Multiply a random matrix [256, 256] by itself."""
    matrix = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).to(device)
    return matrix @ matrix


def embed(device: torch.device) -> Tensor:
    """Embed the states of a random episode [151, 4]."""
    from emtc_core.config.memory import EmbedConfig
    from emtc_core.embedder.networks import Embedder

    state = torch.randn(_N_STATES, _STATE_DIM, generator=torch.Generator().manual_seed(0))
    embedder = Embedder(EmbedConfig(), state_dim=_STATE_DIM, episode_limit=_N_STATES, device=device, seed=0)
    return embedder.embed(state.to(device), torch.arange(_N_STATES, device=device))


if __name__ == "__main__":
    main()
