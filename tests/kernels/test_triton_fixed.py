"""`deterministic` on the Triton backend, in the interpreter: a sequence's logits have the same bits alone, among others, and in chunks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kernels.backend import Backend, backend
from kernels.lora.slots import NONE, BatchAdapters
from kernels.prepare.reference import Batch
from kernels.rotary.table import rotary_table
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.lora import random_adapter
from worker.models.decoder import Decoder, load
from worker.models.spec import lora_shapes

MODEL = {
    "num_hidden_layers": 1, "hidden_size": 160, "intermediate_size": 144, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67,
}  # fmt: skip
LENGTH = 21  # of the sequence that is looked at
BLOCKS = 3  # a sequence's


class Fixed:
    """A model and slots for two adapters with everything; runs chunks of sequences, whose KV stays."""

    def __init__(self, dtype: torch.dtype):
        checkpoint = tiny_llama(**MODEL)[1]
        self.ops: Backend = backend("triton", deterministic=True)
        self.model: Decoder = load(checkpoint, dtype, self.ops, invariant=True)
        spec = self.model.spec
        self.rotaries = tuple(rotary_table(one, 64, 64) for one in spec.rotaries)
        self.slots = self.ops.adapter_slots(lora_shapes(spec), slots=2, max_rank=4, dtype=dtype)
        for slot in range(2):
            self.slots.install(slot, random_adapter(self.slots.shapes, slot))
        self.dtype = dtype

    def pool(self, sequences: int):
        attention = self.model.spec.attention[0]
        pool = self.ops.kv_pool(
            layers=1, kv_heads=attention.kv_heads, head_dim=attention.head_dim, blocks=sequences * BLOCKS,
            dtype=self.dtype,
        )  # fmt: skip
        pool.fill(torch.nan)
        return pool

    def logits(self, tokens: Sequence[Sequence[int]], starts: Sequence[int], pool, adapter: int) -> torch.Tensor:
        """Of all tokens; sequence i has the i-th blocks of the pool; the adapters of others than the last take turns."""
        count = len(tokens)
        of_chunk = np.array([*(number % 3 - 1 for number in range(count - 1)), adapter])
        named = None if (of_chunk == NONE).all() else BatchAdapters(slots=self.slots, of_chunk=of_chunk)
        batch = Batch(
            starts=np.array(starts), lengths=np.array([len(one) for one in tokens]),
            tables=torch.arange(count * BLOCKS).view(count, BLOCKS), adapters=named,
        )  # fmt: skip
        step = self.ops.prepare(batch, pool, self.rotaries, self.model.spec.attentions)
        flat = torch.tensor([token for one in tokens for token in one])
        hidden = self.model.forward(flat, step, pool)
        return self.model.logits(hidden, torch.arange(len(flat)), step)

    def chunked(self, tokens: Sequence[int], sizes: Sequence[int], others: Sequence[Sequence[int]], adapter: int):
        """The last sequence of a batch, whose tokens come in chunks of these sizes; the others come whole in every step, anew."""
        pool, found, done = self.pool(len(others) + 1), [], 0
        for size in sizes:
            chunks = [*others, tokens[done : done + size]]
            found.append(self.logits(chunks, [0] * len(others) + [done], pool, adapter)[-size:])
            done += size
        assert done == len(tokens)
        return torch.cat(found)


CHUNKS = ([13, 8], [19, 1, 1])


@pytest.mark.parametrize(
    ("dtype", "adapter", "batches"),
    [(torch.bfloat16, 1, (([LENGTH], 63),)), (torch.float32, NONE, (([7, 13, 1], 6),))],
    ids=["bfloat16, adapters, 64", "float32, 7"],
)
def test_a_rows_bits_depend_neither_on_the_batch_nor_on_chunks(dtype, adapter, batches) -> None:
    """In batches of 1, 7 and 64; whole, in two chunks, and the end token by token, as decodes compute it."""
    fixed, draw = Fixed(dtype), torch.Generator().manual_seed(3)
    lengths = [LENGTH, 1, 2, 3, 1, 2, 3, *[1] * 57]
    tokens, *others = (torch.randint(3, 67, (length,), generator=draw).tolist() for length in lengths)
    alone = fixed.chunked(tokens, [LENGTH], [], adapter)
    assert torch.isfinite(alone).all()
    for sizes, company in (*((chunks, 0) for chunks in CHUNKS), *batches):
        assert torch.equal(fixed.chunked(tokens, sizes, others[:company], adapter), alone), (sizes, company)
