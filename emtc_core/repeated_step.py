"""Repeated execution of a step with fixed shapes; on a GPU as one CUDA graph.

The host needs about 8 µs to launch an operation. A step of small networks has dozens of operations that a GPU computes
in less time than that, so the launches limit the speed. A CUDA graph is recorded once and launched as a whole.

A graph repeats operations at fixed addresses. So the step

  * must read and write tensors that exist as long as the graph. A value that changes between repeats must be in a
    tensor, such as a counter that the step increments;
  * must not draw random numbers, read a GPU value on the host, or copy data from the host.

Libraries load data at their first call, which a capture does not allow. So the first `WARM_UP` repeats are launched
operation by operation, on the stream that is captured later. If the capture fails, all repeats are launched operation
by operation, with the same results. Steps can share stream and memory. If the capture of one fails, no other is tried.

Before a capture, PyTorch waits for the GPU and frees all unused memory. So steps that are needed later are captured
together with the first one, by `capture_now`.
"""

import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_LOG = logging.getLogger(__name__)
_CAPTURE_LOCK = threading.Lock()
"""PyTorch allows one capture at a time in a process, and a refit may run in a second thread."""

WARM_UP = 3
"""Number of repeats before the capture."""


@dataclass
class _CaptureState:
    """What steps share that are captured on one stream."""

    stream: torch.cuda.Stream
    pool: Any
    has_failed: bool = False


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
            step: The function; see the module for its requirements. A bound method is referenced weakly, so that its
                object is freed, with graph and buffers, when its owner drops it. The cyclic garbage collector might
                free a graph much later, in the middle of another capture.
            device: Device of its tensors.
            name: Name of the step in the log.
            shared: Another step, whose stream and graph memory this one uses. A run of one step may overwrite the
                tensors that a graph of the other has allocated, so these must be copied before.
        """
        self._get_step = weakref.WeakMethod(step) if inspect.ismethod(step) else lambda: step
        self._device, self._name = device, name
        self._warm_ups_left = WARM_UP
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state: _CaptureState | None = None
        if shared is not None:
            self._state = shared._state
        elif device.type == "cuda":
            self._state = _CaptureState(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())

    def run(self, times: int) -> None:
        """Run the step this many times, without waiting for the device."""
        for _ in range(times):
            self._run_once()

    def capture_now(self) -> bool:
        """Run the step once, and capture it. The caller restores what this run changes.

        Returns:
            Whether it is captured. If not, a line of the log says why, and all repeats have the same results.
        """
        if self._state is not None and not self._state.has_failed:
            self._warm_up(self._state.stream)
            self._capture(self._state)
        return self._graph is not None

    def _run_once(self) -> None:
        state = self._state
        if state is not None and not state.has_failed and self._graph is None:
            if self._warm_ups_left:
                self._warm_ups_left -= 1
                self._warm_up(state.stream)
                return
            self._capture(state)
        if self._graph is None:
            self._call_step()
        else:
            self._graph.replay()

    def _call_step(self) -> None:
        step = self._get_step()
        assert step is not None, "the object of the step runs it, so it exists"
        step()

    def _warm_up(self, stream: torch.cuda.Stream) -> None:
        """Launch the step operation by operation on the stream that is captured later."""
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._call_step()
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def _capture(self, state: _CaptureState) -> None:
        """Record the step without executing it. If that fails, no further capture is tried."""
        graph = torch.cuda.CUDAGraph()
        stream_before = torch.cuda.current_stream(self._device)
        try:
            # Threads that write a checkpoint or train the networks meanwhile may allocate memory.
            with (
                _CAPTURE_LOCK,
                torch.cuda.graph(graph, state.pool, state.stream, capture_error_mode="thread_local"),
            ):
                self._call_step()
        except RuntimeError as exc:
            torch.cuda.set_stream(stream_before)  # after a failed capture, torch leaves this thread on the other stream
            state.has_failed = True
            _LOG.warning(
                "The %s is launched operation by operation, with the same results in more time, because it could not "
                "be captured as a CUDA graph: %s",
                self._name,
                exc,
            )
            return
        self._graph = graph
