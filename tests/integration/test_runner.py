"""The runner end to end on a tiny random Llama, against transformers in float32, by hand-written plans."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from shared.types import Sampling
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.driver import BLOCK, Driver
from worker.execution.build import ModelRunner, RunnerConfig, build
from worker.plan import BlockCopy, Chunk, SampleRow, SlotStart, StepPlan, TableWrite

GREEDY = Sampling(temperature=0, max_tokens=20, logprobs=5)
CONFIG = RunnerConfig(
    dtype="float32", max_running=12, step_tokens=512, max_model_len=700, kv_bytes=8 << 20, threads=2, depth=0
)
SHAPES = [
    {},
    {"num_key_value_heads": 6, "tie_word_embeddings": True},
    {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 20, "hidden_size": 91},
    {"attention_bias": True, "mlp_bias": True, "hidden_size": 78, "head_dim": 16, "vocab_size": 1031},
    {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
]


def prompts(count: int, vocabulary: int = 199) -> list[list[int]]:
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 90, (count,), generator=draw).tolist()
    return [torch.randint(3, vocabulary, (n,), generator=draw).tolist() for n in lengths]


@pytest.fixture(scope="module")
def tiny() -> tuple[torch.nn.Module, MemoryCheckpoint]:
    return tiny_llama()


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def runner(request, tiny) -> Iterator[ModelRunner]:
    made = build(tiny[1], replace(CONFIG, depth=request.param))
    made._pool.fill(torch.nan)
    yield made
    made.close()


def driver(runner: ModelRunner) -> Driver:
    order = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(2)).tolist()
    return Driver(runner, order)


def alone(runner: ModelRunner, prompt: list[int], sampling: Sampling = GREEDY) -> list[int]:
    drive = driver(runner)
    sequence = drive.add(0, prompt, sampling)
    drive.run([sequence])
    return sequence.output


@torch.inference_mode()
def judge(model: torch.nn.Module, prompt: list[int], output: list[int]) -> torch.Tensor:
    """transformers' log-probabilities at each output position, teacher-forced."""
    logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_greedy_tokens_and_logprobs_equal_transformers(shape) -> None:
    model, checkpoint = tiny_llama(**shape)
    drive = driver(build(checkpoint, CONFIG))
    sequences = [drive.add(slot, prompt, GREEDY) for slot, prompt in enumerate(prompts(6))]
    drive.run(sequences)
    for s in sequences:
        expected = judge(model, s.prompt, s.output)
        assert s.output == expected.argmax(-1).tolist()
        for position, found in enumerate(s.logprobs):
            assert found is not None
            assert [token for token, _ in found.top] == expected[position].topk(5).indices.tolist()
            assert abs(found.sampled - expected[position].max().item()) < 1e-4


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_and_company_do_not_change_a_token(runner, chunk: int) -> None:
    given = prompts(10)
    sampled = replace(GREEDY, temperature=0.8, top_p=0.95, seed=5)
    asks = [GREEDY if i % 2 else sampled for i in range(len(given))]
    expected = [alone(runner, prompt, ask) for prompt, ask in zip(given, asks, strict=True)]
    runner._pool.fill(torch.nan)
    drive = driver(runner)
    sequences = [drive.add(slot, p, ask) for slot, (p, ask) in enumerate(zip(given, asks, strict=True))]
    drive.run(sequences, chunk)
    assert [s.output for s in sequences] == expected


def test_logprobs_are_bit_equal_alone_and_in_company(runner) -> None:
    given = prompts(8)
    together = driver(runner)
    sequences = [together.add(slot, p, GREEDY) for slot, p in enumerate(given)]
    together.run(sequences, 7)
    for s in sequences:
        drive = driver(runner)
        lone = drive.add(3, s.prompt, GREEDY)
        drive.run([lone])
        assert lone.logprobs == s.logprobs


def test_joining_and_leaving_sequences_do_not_disturb_the_others(runner) -> None:
    given = prompts(3)
    expected = [alone(runner, prompt) for prompt in given]
    drive = driver(runner)
    first, second, third = (drive.add(slot, p, GREEDY) for slot, p in enumerate(given))
    runner.execute(drive.start(first)).result()
    late = {3: second, 6: third}
    live = [first]
    for step in range(60):
        if step in late:
            runner.execute(drive.start(late[step])).result()
            live.append(late[step])
        live = [s for s in live if len(s.output) < 20]
        if not live:
            break
        plan = drive.plan([(s, min(11, s.known - s.computed)) for s in live])
        drive.take(live, plan, runner.execute(plan).result())
    assert [first.output, second.output, third.output] == expected


def test_steps_planned_ahead_give_the_same_tokens(tiny) -> None:
    """Depth 1: plan k + 1 is given before the result of plan k is taken."""
    prompt = prompts(1)[0]
    flat = build(tiny[1], CONFIG)
    ahead = build(tiny[1], replace(CONFIG, depth=1))
    assert (flat.depth, ahead.depth) == (0, 1)
    drive = driver(ahead)
    s = drive.add(4, prompt, GREEDY)
    ahead.execute(drive.start(s)).result()
    pending = []
    for step in range(20):
        start, length = (0, len(prompt)) if step == 0 else (len(prompt) + step - 1, 1)
        plan = StepPlan(
            step=step,
            tables=drive.table(s, start + length),
            chunks=(Chunk(4, start, length),),
            samples=(SampleRow(0, 4, start + length),),
        )
        pending.append(ahead.execute(plan))
    assert [p.result().tokens[0] for p in pending] == alone(flat, prompt)
    ahead.close()


def test_forks_share_a_prefill_and_copy_the_partial_block(runner) -> None:
    """Two choices draw from one chunk, then write to their own copies of the last block."""
    prompt = prompts(4)[3][:37]
    hot = Sampling(temperature=1.5, max_tokens=12, seed=77)
    drive = driver(runner)
    parent = drive.add(0, prompt, hot)
    runner.execute(drive.start(parent)).result()
    tables = drive.table(parent, 48)
    runner.execute(StepPlan(step=1, tables=tables, chunks=(Chunk(0, 0, 30),))).result()
    fork = SlotStart(slot=1, tokens=prompt, prompt_len=37, sampling=hot, choice_index=1)
    shared = TableWrite(1, 0, tuple(parent.blocks))
    first = runner.execute(
        StepPlan(
            step=2,
            starts=(fork,),
            tables=(shared,),
            chunks=(Chunk(0, 30, 7),),
            samples=(SampleRow(0, 0, 37), SampleRow(0, 1, 37)),
        )
    ).result()
    own = drive.free.pop()
    outputs = [[token] for token in first.tokens]
    for position in range(37, 48):
        split = position == 37
        result = runner.execute(
            StepPlan(
                step=position,
                tables=(TableWrite(1, 2, (own,)),) if split else (),
                copies=(BlockCopy(parent.blocks[2], own),) if split else (),
                chunks=(Chunk(1, position, 1), Chunk(0, position, 1)),
                samples=(SampleRow(1, 0, position + 1), SampleRow(0, 1, position + 1)),
            )
        ).result()
        for choice in (0, 1):
            outputs[choice].append(result.tokens[choice])
    assert outputs[0] == alone(runner, prompt, hot)
    assert outputs[0] != outputs[1]
    again = driver(runner)
    twin = again.add(5, prompt, hot)
    start = SlotStart(slot=5, tokens=prompt, prompt_len=37, sampling=hot, choice_index=1)
    runner.execute(StepPlan(step=0, starts=(start,))).result()
    while len(twin.output) < 12:
        plan = again.plan([(twin, twin.known - twin.computed)])
        again.take([twin], plan, runner.execute(plan).result())
    assert outputs[1] == twin.output


def test_a_block_replaced_by_an_equal_one_changes_nothing(runner) -> None:
    """The prefix cache's canonical replacement: a table entry is rewritten to another block of the same content."""
    prompt = prompts(4)[3][:50]
    expected = alone(runner, prompt)
    drive = driver(runner)
    s = drive.add(0, prompt, GREEDY)
    runner.execute(drive.start(s)).result()
    plan = drive.plan([(s, 50)])
    drive.take([s], plan, runner.execute(plan).result())
    other = drive.free.pop()
    runner.execute(StepPlan(step=9, copies=(BlockCopy(s.blocks[1], other),))).result()
    runner.execute(
        StepPlan(step=10, tables=(TableWrite(0, 1, (other,)),), copies=(BlockCopy(drive.free[0], s.blocks[1]),))
    ).result()
    s.blocks[1] = other
    while len(s.output) < 20:
        plan = drive.plan([(s, 1)])
        drive.take([s], plan, runner.execute(plan).result())
    assert s.output == expected


def test_a_prefix_computed_by_another_sequence_serves(runner) -> None:
    """A prefix hit: the second sequence starts behind blocks that the first one wrote."""
    prompt = prompts(4)[3][:60]
    tail = [5, 6, 7, 8, 9]
    expected = alone(runner, prompt[:48] + tail)
    drive = driver(runner)
    first, second = drive.add(0, prompt, GREEDY), drive.add(1, prompt[:48] + tail, GREEDY)
    drive.run([first])
    runner.execute(drive.start(second)).result()
    second.blocks, second.computed = first.blocks[:3], 48
    runner.execute(StepPlan(step=99, tables=(TableWrite(1, 0, tuple(second.blocks)),))).result()
    while len(second.output) < 20:
        plan = drive.plan([(second, second.known - second.computed)])
        drive.take([second], plan, runner.execute(plan).result())
    assert second.output == expected


def test_a_preempted_sequence_goes_on_where_it_was(runner) -> None:
    prompt = prompts(2)[1]
    expected = alone(runner, prompt)
    runner._pool.fill(torch.nan)
    tokens = prompt + expected[:9]
    resumed = SlotStart(slot=7, tokens=tokens, prompt_len=len(prompt), sampling=GREEDY, choice_index=0)
    drive = driver(runner)
    s = drive.add(7, tokens, replace(GREEDY, max_tokens=11))
    runner.execute(StepPlan(step=0, starts=(resumed,))).result()
    while len(s.output) < 11:
        plan = drive.plan([(s, min(13, s.known - s.computed))])
        drive.take([s], plan, runner.execute(plan).result())
    assert s.output == expected[9:]


def test_a_step_that_fails_raises_from_its_result_and_the_next_runs(runner) -> None:
    prompt = prompts(1)[0]
    expected = alone(runner, prompt)
    broken = runner.execute(StepPlan(step=0, copies=(BlockCopy(0, runner.num_blocks),)))
    with pytest.raises(IndexError):
        broken.result()
    assert alone(runner, prompt) == expected


def test_the_longest_sequence_fits_to_its_last_position(tiny) -> None:
    runner = build(tiny[1], replace(CONFIG, max_model_len=64))
    prompt = (prompts(4)[3] * 3)[:60]
    assert len(alone(runner, prompt, replace(GREEDY, max_tokens=5))) == 5
    assert runner.max_model_len == 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32_and_as_independent_of_the_batch(dtype) -> None:
    model, checkpoint = tiny_llama(initializer_range=0.05)
    runner = build(checkpoint, replace(CONFIG, dtype=dtype))
    runner._pool.fill(torch.nan)
    given = prompts(9)
    drive = driver(runner)
    sequences = [drive.add(slot, p, GREEDY) for slot, p in enumerate(given)]
    drive.run(sequences, 7)
    for s in sequences:
        again = driver(runner)
        lone = again.add(11, s.prompt, GREEDY)
        again.run([lone])
        assert (lone.output, lone.logprobs) == (s.output, s.logprobs)
        expected = judge(model, s.prompt, s.output)
        for position, (token, found) in enumerate(zip(s.output, s.logprobs, strict=True)):
            assert found is not None
            assert abs(found.sampled - expected[position, token].item()) < 0.05


def test_a_plan_without_chunks_gives_nothing(runner) -> None:
    result = runner.execute(StepPlan(step=0)).result()
    assert (list(result.tokens), list(result.logprobs), list(result.errors)) == ([], [], [])


def test_blocks_hold_sixteen_positions() -> None:
    from kernels.kv import BLOCK as POOL_BLOCK
    from shared.hashing import BLOCK_SIZE

    assert BLOCK == POOL_BLOCK == BLOCK_SIZE
