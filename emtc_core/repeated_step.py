"""Repeated execution of a step with fixed shapes; on a GPU as one CUDA graph.

The host needs about 8 µs to launch an operation. A step of small networks has dozens of operations that a GPU computes
in less time than that, so the launches limit the speed. A CUDA graph is recorded once and launched as a whole.

A graph repeats operations at fixed addresses. So the step

  * must read and write tensors that exist as long as the graph. A value that changes between repeats must be in a
    tensor, such as a counter that the step increments;
  * must not draw random numbers, read a GPU value on the host, or copy data from the host.

Libraries load data at their first call, which a capture does not allow. So the first `WARM_UP` repeats are launched
operation by operation, on the stream that is captured later. If the capture fails, all repeats are launched operation
by operation, with the same results.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

_LOG = logging.getLogger(__name__)
_CAPTURE_LOCK = threading.Lock()
"""PyTorch allows one capture at a time in a process, and a refit may run in a second thread."""

WARM_UP = 3
"""Number of repeats before the capture."""


class RepeatedStep:
    """Runs a step many times: as a CUDA graph on a GPU, as function calls on the CPU."""

    def __init__(
        self,
        step: Callable[[], None],
        device: torch.device,
        *,
        name: str,
        shared: "RepeatedStep | None" = None,
    ) -> None:
        """Prepare the step.

        Args:
            step: The function; see the module for its requirements.
            device: Device of its tensors.
            name: Name of the step in the log.
            shared: Another step, whose stream and graph memory this one uses. A run of one step may overwrite the
                tensors that a graph of the other has allocated, so these must be copied before.
        """
        self._step, self._device, self._name = step, device, name
        self._call: Callable[[], None] = step  # on a GPU first `_warm_up`, then the replay of the graph
        self._warm_ups_left = WARM_UP
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device) if shared is None else shared._stream
            self._pool = torch.cuda.graph_pool_handle() if shared is None else shared._pool
            self._call = self._warm_up

    def run(self, times: int) -> None:
        """Run the step this many times, without waiting for the device."""
        for _ in range(times):
            self._call()

    def _warm_up(self) -> None:
        if not self._warm_ups_left:
            self._call = self._capture()
            self._call()
            return
        assert self._stream is not None, "_warm_up is called only on a GPU, where the stream exists"
        self._warm_ups_left -= 1
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _capture(self) -> Callable[[], None]:
        """Record the step without executing it. Return a function that replays it, or the step if recording fails."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads that write a checkpoint or train the networks meanwhile may allocate memory.
            with (
                _CAPTURE_LOCK,
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
            ):
                self._step()
        except RuntimeError as exc:
            _LOG.warning(
                "The %s is launched operation by operation, with the same results in more time, because it could not "
                "be captured as a CUDA graph: %s",
                self._name,
                exc,
            )
            return self._step
        return graph.replay
