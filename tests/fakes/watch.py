"""A watch over tensor operations, under which nothing may be done that makes a host wait for its device or sends it anything.

On a CPU such operations cost nothing and go unnoticed; here they raise. Kernels are started without the watch: the interpreter reads what a
GPU's program reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# What looks at values: a number for the host, or a result whose size depends on values.
_LOOKS = {
    aten._local_scalar_dense, aten.nonzero, aten.nonzero_numpy, aten.masked_select, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.equal, aten.is_nonzero, aten.item, aten.bincount,
}  # fmt: skip
_INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
_HOST = {"numpy", "tolist", "item", "cpu", "pin_memory", "__bool__", "__int__", "__float__", "__index__", "__array__"}
_SENDS = {"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer"}


class Looked(AssertionError):
    """The host would have waited for its device, or sent it something."""


class _Functions(TorchFunctionMode):
    def __init__(self, watch: "Unseen"):
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if self._watch.on and (name in _HOST or name in _SENDS or _by_list(name, args)):
            raise Looked(name)
        return func(*args, **(kwargs or {}))


def _by_list(name: str, args: Any) -> bool:
    """Whether a tensor is indexed by a list, which is sent for it."""
    if name not in ("__getitem__", "__setitem__"):
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(part, list | np.ndarray) for part in index)


class _Operators(TorchDispatchMode):
    def __init__(self, watch: "Unseen"):
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._watch.on:
            self._check(func, args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _check(func: Any, args: Any) -> None:
        packet = func.overloadpacket
        if packet in _LOOKS or (packet is aten.repeat_interleave and len(args) < 2):
            raise Looked(str(func))
        if packet in _INDEXED and any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]):
            raise Looked(f"{func} by a mask")


class Unseen:
    """A context in which looks and sends raise Looked; `on` turns it off for a while. `launches` counts kernels."""

    def __init__(self) -> None:
        self.on = True
        self.launches = 0
        self._modes = (_Functions(self), _Operators(self))
        self._from_numpy = torch.from_numpy

    def __enter__(self) -> "Unseen":
        self._patch = mock.patch.object(torch, "from_numpy", self._sent)
        self._patch.start()
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
        self._patch.stop()

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """While this lasts, kernels of the interpreter may be started under the watch."""
        from kernels.gpu.launch import Launcher

        run = Launcher.run

        def unwatched(launcher: Launcher, *args: Any, **kwargs: Any) -> None:
            self.launches += 1
            self.on = False
            try:
                run(launcher, *args, **kwargs)
            finally:
                self.on = True

        with mock.patch.object(Launcher, "run", unwatched):
            yield

    def _sent(self, array: Any) -> torch.Tensor:
        if self.on:
            raise Looked("from_numpy")
        return self._from_numpy(array)
