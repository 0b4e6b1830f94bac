"""What seeds a prefix chain cannot be put in one place to look like another."""

from hypothesis import given
from hypothesis import strategies as st

from shared.hashing import block_hashes, chain_seed

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
