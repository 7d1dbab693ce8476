"""State of an optimizer in a checkpoint, which does not depend on the device of the run.

On a GPU, an optimizer whose steps are part of a CUDA graph is `capturable`; on the CPU, no optimizer can be.
"""

from typing import Any

import torch


def get_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer. The setting `capturable` is that of a CPU on every device."""
    state = optimizer.state_dict()
    for group in state["param_groups"]:  # copies of the optimizer's groups
        group["capturable"] = False
    return state


def set_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any], *, capturable: bool) -> None:
    """Restore the result of `get_optimizer_state` from a run on any device.

    Args:
        optimizer: The optimizer.
        state: Its state. It is not changed.
        capturable: Whether its steps are part of a CUDA graph.
    """
    groups = [group | {"capturable": capturable} for group in state["param_groups"]]
    optimizer.load_state_dict(state | {"param_groups": groups})
