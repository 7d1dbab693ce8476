"""A GPU imitated in software: tensors whose device is cuda:0 and whose values are computed by the CPU.

Everything that runs on a GPU runs here with real values: forward, backward, optimisers, random numbers, searches. What
a GPU refuses is refused: operands on two devices, an index or a generator of another device, NumPy on a tensor of the
GPU, what cuDNN's recurrent layer does not take. What makes the host wait for the GPU is refused inside
`refusing_waits()`.

`imitate()` changes PyTorch itself, so it is for a process that does nothing else. What a build without CUDA, or a
machine without a GPU, lacks is replaced:

    device guards   none to choose a device; that of the meta device does nothing, which is right here
    backward        the engine has a thread for each device; here the graph is walked in Python, node by node
    recurrent layer cuDNN's; computed step by step from its equations
    driver          events, streams, graphs, pinned memory, sizes of memory

`ACTIVITY` counts what is launched on the GPU and what is sent to it. A launch is an operation that computes or copies:
views and empty tensors are not counted. A multi-tensor operation, a recurrent layer and a replay of a graph count as
one each, apart from the exceptions of `_count_kernels`.

A captured graph records operations, with the tensors that they read and write, and computes nothing until its replay.
The replay repeats these operations, so numbers of Python keep the values that they had at the capture.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

GPU, HOST = torch.device("cuda:0"), torch.device("cpu")
CUDA, META = 1, 14  # c10::DeviceType
N_DEVICE_TYPES = 20
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
READS_VALUES = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "is_nonzero", "equal"}
)
SEED_OF_GPU = 1 << 63
INDEXES = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})
COPIES = frozenset({"_to_copy", "copy_"})
METADATA = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"})

_refuses_waits = [False]
_is_hidden = [False]
"""Whether operations belong to one that has been counted already."""


@dataclass
class Activity:
    """What the GPU did since `clear`."""

    launches: Counter[str] = field(default_factory=Counter)  # by operation
    sent_bytes: list[int] = field(default_factory=list)  # of each copy from the host
    replayed: int = 0  # operations inside of replays
    waits: Counter[str] = field(default_factory=Counter)  # of the host for the GPU, by reason

    def clear(self) -> None:
        """Count from zero."""
        self.launches.clear()
        self.replayed = 0
        self.sent_bytes.clear()
        self.waits.clear()


ACTIVITY = Activity()


class GpuTensor(Tensor):
    """A tensor on the GPU; `host` has its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=GPU,
        )

    def __init__(self, host: Tensor) -> None:
        self.host = host

    def __repr__(self) -> str:
        return f"GpuTensor({self.host})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.host.__reduce_ex__(protocol)  # a file that is read without a GPU

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _compute(func, args, kwargs or {})


class _EveryOperation(TorchDispatchMode):
    """Sees operations without an operand on the GPU, too: those that make one, or copy one there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _compute(func, args, kwargs or {})


HostGenerator = torch.Generator


class CudaGenerator(HostGenerator):
    """A generator of the GPU, which operations get as one of the host: its seeds have a mark."""

    def __init__(self) -> None:
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> "CudaGenerator":
        super().manual_seed(seed | SEED_OF_GPU)
        return self


class AnyGenerator(HostGenerator):
    """Makes a generator for either device."""

    def __new__(cls, device: Any = "cpu"):
        return CudaGenerator() if torch.device(device).type == "cuda" else HostGenerator(device)


class Event:
    """A moment on the GPU: each record is a millisecond after the one before.

    The GPU reaches a moment only when the host waits for it or for a later one, so every wait that could happen is
    counted.
    """

    clock_ms = reached_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed, self._at_ms = enable_timing, 0.0

    def record(self) -> None:
        Event.clock_ms += 1.0
        self._at_ms = Event.clock_ms

    def query(self) -> bool:
        return self._at_ms <= Event.reached_ms

    def synchronize(self) -> None:
        if not self.query():
            _wait("an event")
            Event.reached_ms = self._at_ms

    def elapsed_time(self, end: "Event") -> float:
        assert self._is_timed
        assert end._is_timed
        return end._at_ms - self._at_ms


class Stream:
    """A queue of the GPU; here everything is computed at once."""

    current: "Stream"

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, stream: "Stream") -> None:
        pass

    def is_capturing(self) -> bool:
        return Graph.recording is not None


class Graph:
    """Operations that are recorded once and repeated."""

    recording: "Graph | None" = None

    def __init__(self) -> None:
        self._operations: list[Callable[[], None]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._launches = 0

    def record(self, func, args, kwargs):
        """Keep an operation for the replays; what it writes meanwhile is undone at the end of the capture."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._save(argument, value)
        for argument in func._schema.arguments:
            self._save(argument, kwargs.get(argument.name))
        args, kwargs = tree_map(_to_host, (args, kwargs))
        out = func(*args, **kwargs)

        def repeat() -> None:
            for kept, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(kept, Tensor) and kept.data_ptr() != new.data_ptr():
                    kept.copy_(new.reshape(kept.shape))  # `squeeze_` may have changed its shape since

        self._operations.append(repeat)
        if _is_launch(func):
            self._launches += _count_kernels(func.overloadpacket.__name__, args)
        return out

    def record_whole(self, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Keep several operations on tensors of the host as one."""
        out = compute()

        def repeat() -> None:
            for kept, new in zip(out, compute(), strict=True):
                kept.copy_(new)

        self._operations.append(repeat)
        self._launches += 1
        return out

    def _save(self, argument: Any, value: Any) -> None:
        if argument.alias_info is not None and argument.alias_info.is_write:
            tensors = [x.host for x in tree_leaves(value) if isinstance(x, GpuTensor)]
            self._before += [(x, x.clone()) for x in tensors]

    def end(self) -> None:
        """Give every tensor the values that it had before the capture."""
        for tensor, value in reversed(self._before):
            tensor.copy_(value)
        self._before.clear()

    def replay(self) -> None:
        """Carry out what was recorded."""
        ACTIVITY.launches["replay"] += 1
        ACTIVITY.replayed += self._launches
        for repeat in self._operations:
            repeat()


Stream.current = Stream()


@contextmanager
def _capture(graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Generator[None]:
    before, Stream.current = Stream.current, Stream.current if stream is None else stream
    Graph.recording = graph
    try:
        yield
    finally:
        Graph.recording = None
        graph.end()
    Stream.current = before  # not after an error, as in torch 2.13


@contextmanager
def refusing_waits() -> Generator[None]:
    """Raise at whatever makes the host wait for the GPU."""
    before, _refuses_waits[0] = _refuses_waits[0], True
    try:
        yield
    finally:
        _refuses_waits[0] = before


@contextmanager
def imitate() -> Iterator[None]:
    """Let PyTorch have a GPU, from here to the end of the process; tensors are made there inside the block."""
    _replace_driver()
    with _EveryOperation():
        yield


def _replace_driver() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * N_DEVICE_TYPES).in_dll(library, GUARDS)
    guards[CUDA] = guards[META]
    cuda: Any = torch.cuda
    cuda.is_available = cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda._lazy_init = lambda: None
    accelerator: Any = torch.accelerator
    torch.backends.cuda.is_built = lambda: True
    accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    accelerator.current_stream = lambda device=None: Stream.current
    cuda.is_current_stream_capturing = lambda: Graph.recording is not None
    cuda.amp.common.amp_definitely_not_available = lambda: False
    cuda.mem_get_info = lambda device=None: (70 * 10**9, 80 * 10**9)
    cuda.memory_reserved = lambda device=None: 10**9
    cuda.utilization = lambda device=None: 50
    cuda.get_device_name = lambda device=None: "imitated GPU"
    cuda.Event, cuda.Stream, cuda.CUDAGraph, cuda.graph = Event, Stream, Graph, _capture
    cuda.current_stream = lambda device=None: Stream.current
    cuda.set_stream = lambda stream: setattr(Stream, "current", stream)
    cuda.graph_pool_handle = lambda: (0, 0)
    cuda.stream = lambda stream: nullcontext()
    torch.inference_mode.__enter__ = lambda self: torch._C._set_grad_enabled(False)  # nothing here is left without a
    torch.inference_mode.__exit__ = lambda self, *_: torch._C._set_grad_enabled(True)  # counter of its changes
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):  # multi-tensor operations, as on a GPU
        vars(import_module(name))["_foreach_supported_types"].append(GpuTensor)
    kept = {"tensor": torch.tensor, "backward": Tensor.backward, "gru": torch._VF.gru, "gru_cell": torch.gru_cell}

    def tensor(data, *, dtype=None, device=None, **more):
        made = kept["tensor"](data, dtype=dtype, **more)
        return made if device is None else made.to(device)

    torch.tensor = tensor
    torch.Generator = AnyGenerator
    torch._VF.gru = lambda x, *more: _run_cudnn_gru(x, *more) if x.is_cuda else kept["gru"](x, *more)
    torch.gru_cell = lambda x, *more: _step_gru(x, *more) if x.is_cuda else kept["gru_cell"](x, *more)
    Tensor.backward = lambda self: _walk_backward(self) if self.is_cuda else kept["backward"](self)
    Tensor.pin_memory = lambda self: self


def _compute(func, args, kwargs):
    """Carry an operation out on the CPU, as far as a GPU would."""
    name, leaves = func.overloadpacket.__name__, tree_leaves((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    makes_gpu = device is not None and device.type in ("cuda", "meta")  # "cuda" without a number becomes meta above
    has_gpu = any(isinstance(x, GpuTensor) for x in tensors)
    kwargs_on_host = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    _refuse_generator(leaves, on_gpu=makes_gpu or (has_gpu and device is None))
    if not has_gpu and not makes_gpu:
        return func(*args, **kwargs_on_host)
    _refuse(name, args, tensors)
    if reason := _find_wait(name, args, kwargs, device):
        _wait(reason)
        Event.reached_ms = Event.clock_ms
    if device is not None:
        kwargs_on_host["device"] = HOST
    _count(func, name, args, makes_gpu=makes_gpu)
    if Graph.recording is None or torch.Tag.inplace_view in func.tags:
        out = func(*tree_map(_to_host, args), **tree_map(_to_host, kwargs_on_host))
    else:
        _refuse_capture(name, args, leaves)
        out = Graph.recording.record(func, args, kwargs_on_host)
    if device is not None and not makes_gpu:
        return out
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_to_gpu, out))


def _count(func, name: str, args, *, makes_gpu: bool) -> None:
    """Count a launch, and the bytes that a copy sends."""
    if _is_hidden[0] or Graph.recording is not None or not _is_launch(func):
        return
    ACTIVITY.launches[name] += _count_kernels(name, args)
    source = {"_to_copy": args[:1] if makes_gpu else (), "copy_": args[1:2] if args and _is_gpu(args[0]) else ()}
    ACTIVITY.sent_bytes += [x.numel() * x.element_size() for x in source.get(name, ()) if not _is_gpu(x)]


def _is_launch(func) -> bool:
    """Whether an operation computes or copies something."""
    if func.overloadpacket.__name__ in METADATA or torch.Tag.inplace_view in func.tags:
        return False
    return not any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _count_kernels(name: str, args: Any) -> int:
    """Count the kernels and copies that an operation launches: one, if it is not an exception."""
    if name == "constant_pad_nd":
        return 2  # it fills a tensor and copies another one into it
    if name == "_foreach_copy_":
        targets, sources = args[:2]
        pairs = list(zip(targets, sources, strict=True))
        same_types = len({x.dtype for x in targets}) == len({x.dtype for x in sources}) == 1
        same_layouts = all(one.shape == other.shape and one.stride() == other.stride() for one, other in pairs)
        return 1 if same_types and same_layouts else len(pairs)  # as in ATen's ForeachBinaryOpList.cu
    return 1


def _is_gpu(value: Any) -> bool:
    return isinstance(value, GpuTensor)


def _refuse_capture(name: str, args: Any, leaves: list[Any]) -> None:
    """Refuse what a graph cannot repeat."""
    if any(isinstance(x, torch._C.Generator) for x in leaves):
        raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")
    if name in COPIES and any(isinstance(x, Tensor) and x.dim() and not _is_gpu(x) for x in args):
        raise RuntimeError("operation not permitted when stream is capturing: a copy from the host")


def _to_host(value: Any) -> Any:
    return value.host if isinstance(value, GpuTensor) else value


def _to_gpu(value: Any) -> Any:
    return GpuTensor(value) if isinstance(value, Tensor) and not isinstance(value, GpuTensor) else value


def _refuse(name: str, args: Any, tensors: list[Tensor]) -> None:
    """Refuse operands on two devices, as CUDA's kernels do; a number in a tensor of the CPU may be anywhere."""
    if name in COPIES:
        return
    if name in INDEXES:
        own, places = args[0], [x for x in args[1] if x is not None]
        if not own.is_cuda and any(x.is_cuda for x in places):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        tensors = [own, *(x for x in args[2:] if isinstance(x, Tensor))]
    devices = {x.device for x in tensors if x.is_cuda or x.dim()}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {sorted(map(str, devices))}")


def _refuse_generator(leaves: list[Any], *, on_gpu: bool) -> None:
    for each in leaves:
        if isinstance(each, torch._C.Generator) and bool(each.initial_seed() & SEED_OF_GPU) is not on_gpu:
            raise RuntimeError(f"Expected a {'cuda' if on_gpu else 'cpu'!r} device type for generator")


def _find_wait(name: str, args: Any, kwargs: Any, device: torch.device | None) -> str:
    """Say why the host waits; empty where it does not."""
    if name in READS_VALUES:
        return f"{name} reads a value"
    if name in INDEXES:
        places = [x for x in args[1] if x is not None]
        if any(x.dtype in (torch.bool, torch.uint8) for x in places):
            return f"{name} counts the places of a mask"
        if any(not x.is_cuda for x in places):
            return f"{name} sends an index"
    if name == "_to_copy" and device is not None and (device.type != "cpu") is not args[0].is_cuda:
        return "" if kwargs.get("non_blocking") else f"a copy to {device.type}"
    if name == "copy_" and args[0].device.type != args[1].device.type:
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        return "" if asynchronous else f"a copy to {args[0].device.type}"
    return ""


def _wait(reason: str) -> None:
    ACTIVITY.waits[reason] += 1
    if Graph.recording is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {reason}")
    if _refuses_waits[0]:
        raise RuntimeError(f"the host waits for the GPU: {reason}")


def _run_cudnn_gru(x, hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    """Run one layer over [T, M, I] from [1, M, H]; refuse what cuDNN refuses, and half precision."""
    if min(x.shape) < 1:
        raise RuntimeError(f"Expected sequence length and batch to be larger than 0, got {tuple(x.shape)}")
    if {each.dtype for each in (x, hx, *weights)} != {x.dtype}:
        raise RuntimeError("Input, hidden and parameter tensors must have the same type")
    if x.dtype.itemsize < 4:
        raise RuntimeError("a recurrent layer in half precision, whose small gradients would be zero")
    outputs = CudnnGru.apply(x, hx, *weights)
    return outputs, outputs[-1:]


class CudnnGru(torch.autograd.Function):
    """One operation, forth and back, as cuDNN's is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hx: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, hx, *weights)
        inputs = [each.host for each in (x, hx, *weights)]
        return _run_whole("_cudnn_rnn", lambda: [_unroll_gru(*inputs)])[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output
        inputs = [x.host.detach().requires_grad_() for x in ctx.saved_tensors]

        def compute() -> list[Tensor]:
            with torch.enable_grad():
                return list(torch.autograd.grad(_unroll_gru(*inputs), inputs, grad.host))

        return tuple(_run_whole("_cudnn_rnn_backward", compute))


def _run_whole(name: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Compute tensors of the GPU from those of the host, as one operation."""
    if Graph.recording is not None:
        return [GpuTensor(x) for x in Graph.recording.record_whole(compute)]
    ACTIVITY.launches[name] += 1
    return [GpuTensor(x) for x in compute()]


@contextmanager
def _hide_launches() -> Generator[None]:
    _is_hidden[0] = True
    try:
        yield
    finally:
        _is_hidden[0] = False


def _unroll_gru(x, hx, *weights):
    h, steps = hx[0], []
    for x_t in x.unbind(0):
        h = _step_gru(x_t, h, *weights)
        steps.append(h)
    return torch.stack(steps)


def _step_gru(x, h, w_ih, w_hh, b_ih, b_hh):
    x_r, x_z, x_n = torch.addmm(b_ih, x, w_ih.t()).chunk(3, -1)
    h_r, h_z, h_n = torch.addmm(b_hh, h, w_hh.t()).chunk(3, -1)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return n + z * (h - n)


@torch.no_grad()
def _walk_backward(loss: Tensor) -> None:
    """Send the gradient of a scalar back through every node of its graph, as the engine does."""
    gradients: dict[Any, dict[int, Tensor]] = {loss.grad_fn: {0: torch.ones_like(loss)}}
    for node in reversed(_order_nodes(loss.grad_fn)):
        given = gradients.pop(node, {})
        if hasattr(node, "variable"):
            for gradient in given.values():
                if node.variable.grad is None:
                    with _hide_launches():  # the engine takes the tensor itself
                        node.variable.grad = gradient.clone()
                else:
                    node.variable.grad.add_(gradient)
            continue
        if not given:
            continue
        back = node.apply if isinstance(node, torch.autograd.function.BackwardCFunction) else node
        found = back(*(given.get(i) for i in range(len(node._input_metadata))))
        for (following, i), gradient in zip(
            node.next_functions, found if isinstance(found, tuple) else (found,), strict=True
        ):
            if following is None or gradient is None:
                continue
            about = following.variable if hasattr(following, "variable") else following._input_metadata[i]
            assert gradient.device == about.device
            gradient = gradient.sum_to_size(tuple(about.shape)).to(about.dtype)
            sums = gradients.setdefault(following, {})
            sums[i] = sums[i] + gradient if i in sums else gradient


def _order_nodes(root: Any) -> list[Any]:
    """List the nodes of a graph, each after those that it sends gradients to."""
    order, seen, ahead = [], set(), [(root, False)]
    while ahead:
        node, is_done = ahead.pop()
        if is_done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            ahead += [(node, True), *((following, False) for following, _ in node.next_functions)]
    return order
