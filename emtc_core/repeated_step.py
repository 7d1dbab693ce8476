"""A step of fixed shapes that is repeated many times: on a GPU as one CUDA graph.

The host needs some 8 µs to launch an operation, whatever it computes. A step of small networks is dozens of operations
that a GPU computes in less time than that, so the launches decide how long it takes. A graph is recorded once and
launched as a whole.

A graph repeats operations at fixed addresses. So a step that is repeated

  * reads and writes tensors that outlive it, and takes what differs between two repeats from a tensor, such as a
    counter that it increases itself;
  * draws no random numbers, reads no value of the GPU on the host and copies nothing from the host.

The first repeats are launched one by one, on a stream of their own as a capture needs it: they load what libraries load
at first use. If the capture fails, the step is launched one by one to the end: the same function, the same numbers.
"""

import logging
from collections.abc import Callable

import torch

_LOG = logging.getLogger(__name__)

WARM_UP = 3
"""Repeats before the capture."""


class RepeatedStep:
    """Repeats a step; on the CPU it calls the function."""

    def __init__(self, step: Callable[[], None], device: torch.device, *, name: str) -> None:
        """Prepare the step.

        Args:
            step: The function, as the module's docstring requires it.
            device: Where its tensors are.
            name: What the log calls it.
        """
        self._step, self._device, self._name = step, device, name
        self._call: Callable[[], None] = step
        self._warm_ups_left = WARM_UP
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._call = self._warm_up

    def run(self, times: int) -> None:
        """Take the step this many times, without waiting for the device."""
        for _ in range(times):
            self._call()

    def _warm_up(self) -> None:
        if not self._warm_ups_left:
            self._call = self._capture()
            self._call()
            return
        assert self._stream is not None, "made on a GPU"
        self._warm_ups_left -= 1
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _capture(self) -> Callable[[], None]:
        """Record the step, which computes nothing; return what replays it, or the step itself if that fails."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads that write a checkpoint or train the networks meanwhile may allocate memory.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
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
