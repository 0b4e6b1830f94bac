"""The compiled library in this process: its functions, its threads, and memory in huge pages."""

import ctypes
import hashlib
import weakref
from pathlib import Path
from typing import Any

import torch

from kernels.cpu.isa import Level
from kernels.errors import NoBackend

_POINTER, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "octavo_permitted": (_INT, ()),
    "octavo_rounding": (_INT, ()),
    "octavo_engine_new": (_POINTER, (_INT,)),
    "octavo_engine_free": (None, (_POINTER,)),
    "octavo_allocate": (_POINTER, (_INT,)),
    "octavo_release": (None, (_POINTER, _INT)),
    "octavo_touch": (None, (_POINTER, _INT)),
    "octavo_pack": (None, (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER)),
    "octavo_linear": (None, (_POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "octavo_step_new": (_POINTER, (_POINTER, _POINTER, _POINTER, _INT, _INT)),
    "octavo_step_free": (None, (_POINTER,)),
    "octavo_embed": (None, (_POINTER, _INT, _POINTER, _INT, _INT, _REAL, _POINTER)),
    "octavo_attn_in": (None, (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER)),
    "octavo_kv_write": (None, (_POINTER, _POINTER, _POINTER, _POINTER, _INT)),
    "octavo_attention": (_INT, (_POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT)),
    "octavo_attn_out": (None, (_POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT)),
    "octavo_mlp": (None, (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT)),
    "octavo_greedy": (None, (_POINTER, _POINTER, _INT, _INT, _POINTER)),
    "octavo_finite": (None, (_POINTER, _POINTER, _INT, _INT, _POINTER)),
    "octavo_sample": (None, (_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER)),
    "octavo_layers": (
        _INT,
        (_POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "octavo_logits": (None, (_POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER)),
    "octavo_step_adapters": (None, (_POINTER, _POINTER)),
    "octavo_step_adapted": (_POINTER, (_POINTER,)),
    "octavo_embed_adapted": (None, (_POINTER, _POINTER, _INT, _INT, _REAL, _POINTER, _POINTER)),
    "octavo_lora_sizes": (None, (_INT, _INT, _INT, _INT, _POINTER, _POINTER)),
    "octavo_lora_pack": (None, (_POINTER, _POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER)),
}


class UnusableLibrary(NoBackend):
    """The library was built, but this process cannot run it. The message tells why."""


class Forbidden(UnusableLibrary):
    """The system does not let this process use the library's instructions; it may allow those of another level."""


def arithmetic(library: bytes, rounding: int) -> str:
    """A digest of what decides an engine's bits: the library, and what the processor makes of it."""
    return hashlib.blake2b(library + rounding.to_bytes(8, "little", signed=True), digest_size=10).hexdigest()


class Engine:
    """Threads and scratch memory; `lib` holds the functions, which all release the interpreter's lock."""

    def __init__(self, path: Path, level: Level, threads: int):
        try:
            self.lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnusableLibrary(f"{path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.level = level
        self.threads = threads
        if not self.lib.octavo_permitted():
            raise Forbidden(f"the system does not let this process use {level} instructions")
        self.build = arithmetic(path.read_bytes(), self.lib.octavo_rounding())
        self.handle: int | None = self.lib.octavo_engine_new(threads)
        if self.handle is None:
            raise UnusableLibrary(f"the system gives this process no {threads} threads, or no memory for them")
        weakref.finalize(self, self.lib.octavo_engine_free, self.handle)

    def memory(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], zero, in huge pages where the system has them. MemoryError where there is none."""
        address = self.lib.octavo_allocate(max(1, nbytes))
        if not address:
            raise MemoryError(f"the system gave no {nbytes} bytes")
        buffer = (ctypes.c_uint8 * max(1, nbytes)).from_address(address)
        weakref.finalize(buffer, self.lib.octavo_release, address, max(1, nbytes))
        return torch.frombuffer(buffer, dtype=torch.uint8)[:nbytes]

    def touch(self, memory: torch.Tensor, first: int, nbytes: int) -> None:
        """Has the system give that part of what `memory` gave, if it can, without a change to what is there: others may use it."""
        self.lib.octavo_touch(memory.data_ptr() + first, nbytes)
