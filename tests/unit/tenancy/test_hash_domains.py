"""What seeds a prefix chain cannot be put in one place to look like another."""

from hypothesis import given
from hypothesis import strategies as st

from shared.hashing import BLOCK_SIZE, block_hashes, chain, chain_seed, next_hash

VALUES = st.binary(max_size=40)


@given(VALUES.filter(bool))
def test_router_case_18_an_adapters_digest_is_no_salt_of_the_same_bytes(value: bytes) -> None:
    """vllm-project/vllm 44701: an adapter without a salt and a salt without an adapter share no block, though their bytes are equal."""
    adapter = chain_seed(model_revision="r", adapter_digest=value)
    salted = chain_seed(model_revision="r", salt=value)
    prompt = list(range(100))
    assert not set(block_hashes(adapter, prompt)) & set(block_hashes(salted, prompt))
    assert chain_seed(model_revision="r") not in (adapter, salted)


@given(st.tuples(st.text(max_size=9), VALUES, VALUES), st.tuples(st.text(max_size=9), VALUES, VALUES))
def test_seeds_are_equal_only_where_all_fields_are(
    one: tuple[str, bytes, bytes], other: tuple[str, bytes, bytes]
) -> None:
    seeds = [chain_seed(model_revision=r, adapter_digest=a, salt=s) for r, a, s in (one, other)]
    assert (seeds[0] == seeds[1]) == (one == other)


PROMPTS = st.lists(st.integers(0, 9), min_size=0, max_size=6 * BLOCK_SIZE)


@given(PROMPTS, st.integers(0, 4), VALUES.filter(bool), VALUES.filter(bool))
def test_two_salts_share_the_blocks_before_their_place_and_none_after_it(
    prompt: list[int], public: int, one: bytes, other: bytes
) -> None:
    mine, theirs = [
        chain(model_revision="r", salt=salt, salt_from=public * BLOCK_SIZE).hashes(prompt) for salt in (one, other)
    ]
    blocks = len(prompt) // BLOCK_SIZE
    shared = blocks if one == other else min(public, blocks)
    assert len(mine) == len(theirs) == blocks
    assert mine[:shared] == theirs[:shared]
    assert not set(mine[shared:]) & set(theirs[shared:])
    assert not set(mine[public:]) & set(block_hashes(chain_seed(model_revision="r"), prompt))


@given(PROMPTS, st.integers(0, 4), VALUES)
def test_a_chain_made_block_by_block_is_the_same(prompt: list[int], public: int, salt: bytes) -> None:
    whole = chain(model_revision="r", salt=salt, salt_from=public * BLOCK_SIZE)
    hashes: list[bytes] = []
    for index in range(len(prompt) // BLOCK_SIZE):
        parent = whole.parent(index, hashes[-1] if hashes else whole.seed)
        hashes.append(next_hash(parent, prompt[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]))
    assert hashes == whole.hashes(prompt)
