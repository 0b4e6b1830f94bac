"""The prefix cache as requests see it: hits, isolation, replay after preemption, what is published."""

import pytest

from shared.hashing import block_hashes, chain_seed, published
from shared.types import Tenant
from tests.unit.scheduler.rig import Rig

PROMPT = [(5 * i) % 47 for i in range(150)]


TENANT = Tenant(id="t")


def cached(rig: Rig, prompt: list[int], tenant: Tenant = TENANT) -> int:
    (key,) = rig.submit(prompt, max_tokens=3, tenant=tenant)
    rig.run()
    rig.assert_as_alone([key])
    return rig.finished[key].cached_tokens


def test_a_prompt_that_was_seen_is_hit_up_to_the_block_before_its_last_token() -> None:
    rig = Rig()
    assert cached(rig, PROMPT) == 0
    assert cached(rig, PROMPT) == 144
    assert cached(rig, PROMPT[:144]) == 128, "its last token must be computed"
    assert cached(rig, PROMPT[:20] + [1] * 30) == 16
    assert cached(rig, [1, *PROMPT]) == 0


def test_what_was_generated_is_cached_too() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT[:10], max_tokens=30)
    rig.run()
    assert cached(rig, PROMPT[:10] + rig.tokens[keys[0]] + [1, 2]) == 32


def test_c52_a_tenants_prefix_is_hidden_from_another_salt() -> None:
    rig = Rig()
    assert cached(rig, PROMPT, Tenant(id="a", salt=b"a")) == 0
    assert cached(rig, PROMPT, Tenant(id="b", salt=b"b")) == 0
    assert cached(rig, PROMPT, Tenant(id="a", salt=b"a")) == 144


def test_without_a_prefix_cache_nothing_is_hit_or_published() -> None:
    rig = Rig(prefix_cache=False)
    assert cached(rig, PROMPT) == 0
    assert cached(rig, PROMPT) == 0
    assert rig.scheduler.published() == ()


def test_a_preempted_choice_finds_its_own_blocks_again() -> None:
    rig = Rig(step_tokens=512)
    (key,) = rig.submit(PROMPT, max_tokens=30)
    for _ in range(12):
        rig.step()
    (seq,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.step()
    (chunk,) = rig.executor.plans[-1].chunks
    assert chunk.start == 160
    rig.run()
    assert rig.finished[key].cached_tokens == 0, "only the first admission counts"
    rig.assert_as_alone([key])


def test_every_fourth_hash_is_published_when_its_block_is_final_and_not_before() -> None:
    rig = Rig(step_tokens=64)
    rig.submit(PROMPT, max_tokens=3)
    hashes = list(block_hashes(chain_seed(model_revision="r"), PROMPT))
    assert rig.known == set()
    rig.step()
    assert rig.known == {hashes[3]}
    rig.run()
    assert rig.known == set(published(hashes)) == {hashes[3], hashes[7]}


def test_eviction_takes_the_tails_of_the_oldest_first_and_says_so() -> None:
    rig = Rig(num_blocks=10)
    cached(rig, PROMPT[:130])
    assert len(rig.known) == 2
    cached(rig, [1] * 40)
    assert len(rig.known) == 1, "the eighth block went, the fourth stays"
    assert cached(rig, PROMPT[:130]) >= 64


def test_flushing_forgets_what_no_one_uses_and_nothing_else() -> None:
    rig = Rig()
    cached(rig, [3] * 80)
    (key,) = rig.submit(PROMPT, max_tokens=40, tenant=TENANT)
    for _ in range(4):
        rig.step()
    assert len(rig.known) == 3
    assert rig.scheduler.flush_cache() == 5
    rig.take(rig.scheduler.take_output())
    assert len(rig.known) == 2
    rig.run()
    rig.assert_as_alone([key])
    assert rig.scheduler.flush_cache() > 0
    rig.take(rig.scheduler.take_output())
    assert rig.known == set()
    assert cached(rig, PROMPT) == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_deltas_after_a_snapshot_lead_to_what_is_published(depth: int) -> None:
    rig = Rig(num_blocks=24, depth=depth, max_running=3)
    for count in range(6):
        rig.submit(PROMPT[count : count + 70], max_tokens=5)
    for _ in range(5):
        rig.step()
    view = set(rig.scheduler.published())
    rig.known = set(view)
    for count in range(30):
        rig.submit([count] * 70, max_tokens=5)
        rig.step()
    rig.run()
    assert rig.known == set(rig.scheduler.published())
    assert rig.known != view
