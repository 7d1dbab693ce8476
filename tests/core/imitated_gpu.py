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
    driver          events, pinned memory, sizes of memory
"""

import ctypes
from collections.abc import Generator, Iterator
from contextlib import contextmanager
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

_refuses_waits = [False]


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
    """A moment on the GPU: each record is a millisecond after the one before."""

    clock_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed, self._at_ms = enable_timing, 0.0

    def record(self) -> None:
        Event.clock_ms += 1.0
        self._at_ms = Event.clock_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _wait("an event")

    def elapsed_time(self, end: "Event") -> float:
        assert self._is_timed
        assert end._is_timed
        return end._at_ms - self._at_ms


@contextmanager
def refusing_waits() -> Generator[None]:
    """Raise at whatever makes the host wait for the GPU."""
    before, _refuses_waits[0] = _refuses_waits[0], True
    try:
        yield
    finally:
        _refuses_waits[0] = before


def set_sync_debug_mode(mode: str) -> None:
    """Refuse waits from now on in the mode "error", as torch.cuda's function of that name does."""
    _refuses_waits[0] = mode == "error"


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
    cuda.is_current_stream_capturing = lambda: False
    cuda.amp.common.amp_definitely_not_available = lambda: False
    cuda.mem_get_info = lambda device=None: (70 * 10**9, 80 * 10**9)
    cuda.memory_reserved = lambda device=None: 10**9
    cuda.utilization = lambda device=None: 50
    cuda.get_device_name = lambda device=None: "imitated GPU"
    cuda.Event = Event
    torch.inference_mode.__enter__ = lambda self: torch._C._set_grad_enabled(False)  # nothing here is left without a
    torch.inference_mode.__exit__ = lambda self, *_: torch._C._set_grad_enabled(True)  # counter of its changes
    torch.__future__.set_overwrite_module_params_on_conversion(True)
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
    if device is not None:
        kwargs_on_host["device"] = HOST
    out = func(*tree_map(_to_host, args), **tree_map(_to_host, kwargs_on_host))
    if device is not None and not makes_gpu:
        return out
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_to_gpu, out))


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
    h, steps = hx[0], []
    for x_t in x.unbind(0):
        h = _step_gru(x_t, h, *weights)
        steps.append(h)
    return torch.stack(steps), h.unsqueeze(0)


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
                    node.variable.grad = gradient.clone()
                else:
                    node.variable.grad.add_(gradient)
            continue
        if not given:
            continue
        found = node(*(given.get(i) for i in range(len(node._input_metadata))))
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
