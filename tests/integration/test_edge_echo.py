"""What both edges tell of a prompt: its text (echo), its log-probabilities, and nothing else where no token is wanted."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from protos import inference_pb2 as pb
from tests.fakes.edges import GrpcEdge, HttpEdge, grpc_edge, http_edge
from tests.fakes.service import WORDS, FakeService

TEXT = "".join(WORDS)


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


@pytest.fixture
async def rpc_edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


async def test_an_echo_begins_each_choice_with_its_own_prompt(edge: HttpEdge) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": ["é1", "b"], "n": 2, "echo": True}
    whole = await edge.openai.completions.create(**ask)
    assert [choice.text for choice in whole.choices] == [f"é1{TEXT}"] * 2 + [f"b{TEXT}"] * 2
    assert whole.usage.completion_tokens == 4 * len(WORDS)
    texts = [""] * 4
    async for chunk in await edge.openai.completions.create(**ask, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


async def test_an_echo_of_token_ids_or_of_a_truncated_prompt_is_what_they_spell(edge: HttpEdge) -> None:
    ids = await edge.openai.completions.create(model="tiny", prompt=[72, 105], echo=True, max_tokens=1)
    assert ids.choices[0].text == "HiOnce"
    cut = await edge.http.post(
        "/v1/completions", json={"prompt": "abcdef", "echo": True, "truncate_prompt_tokens": 2, "max_tokens": 1}
    )
    assert cut.json()["choices"][0]["text"] == "efOnce"
    assert cut.json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_with_logprobs_has_the_prompts_tokens_first(edge: HttpEdge, stream: bool) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        chunks = [chunk.choices[0] async for chunk in await edge.openai.completions.create(**ask, stream=True)]
        rows = [chunk.logprobs for chunk in chunks if chunk.logprobs]
        joined = {name: [each for row in rows for each in getattr(row, name)] for name in dict(rows[0])}
        text = "".join(chunk.text for chunk in chunks)
    else:
        choice = (await edge.openai.completions.create(**ask)).choices[0]
        joined, text = dict(choice.logprobs), choice.text
    assert text == "abcOnce upon"
    assert joined["tokens"] == ["a", "b", "c", "Once", " upon"]
    assert joined["token_logprobs"] == [None, -1.0, -2.0, -0.5, -0.5]
    assert joined["top_logprobs"] == [None, {"b": -1.0}, {"c": -2.0}, {"Once": -0.5}, {" upon": -0.5}]
    assert joined["text_offset"] == [0, 1, 2, 3, 7]


async def test_max_tokens_0_with_echo_is_the_prompt_alone(edge: HttpEdge) -> None:
    ask: dict[str, Any] = {"model": "tiny", "prompt": "abc", "echo": True, "max_tokens": 0}
    whole = await edge.openai.completions.create(**ask, logprobs=0, n=2)
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == [("abc", "length")] * 2
    assert whole.choices[0].logprobs.tokens == ["a", "b", "c"]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 0, 3)
    stream = await edge.openai.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [("abc", "length")]
    assert last.usage.completion_tokens == 0


async def test_prompt_logprobs_are_told_by_token_id_beside_each_completion(edge: HttpEdge) -> None:
    answer = await edge.http.post("/v1/completions", json={"prompt": "ab", "prompt_logprobs": 2, "max_tokens": 1})
    choice = answer.json()["choices"][0]
    assert choice["text"] == "Once"
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
            "99": {"logprob": -2.0, "rank": 2, "decoded_token": "c"},
        },
    ]
    none = await edge.http.post("/v1/completions", json={"prompt": "ab", "prompt_logprobs": 0, "max_tokens": 0})
    assert none.json()["choices"][0]["prompt_logprobs"] == [
        None,
        {"98": {"logprob": -1.0, "rank": None, "decoded_token": "b"}},
    ]
    assert none.json()["choices"][0]["text"] == ""


async def test_prompt_logprobs_of_a_chat_are_told_once(edge: HttpEdge) -> None:
    body = {"messages": [{"role": "user", "content": "ab"}], "prompt_logprobs": 1, "n": 2, "max_tokens": 1}
    answer = (await edge.http.post("/v1/chat/completions", json=body)).json()
    assert [row and list(row) for row in answer["prompt_logprobs"]] == [None, ["98"]]
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


async def test_best_of_tells_the_likeliest_candidates(edge: HttpEdge) -> None:
    def script(request: Any) -> Any:
        from router.request import Ended, Logprobs, Piece, TokenText

        values = [-3.0, -0.5, -2.0, -1.0][: request.n]
        rows = [(Logprobs(sampled=TokenText(token=1, logprob=v, text=b"x"), top=()),) for v in values]
        ended = Ended(reason="stop")
        return [
            tuple(
                Piece(index=i, text=f"{request.prompt.text}{i}", tokens=(1,), logprobs=r, ended=ended)
                for i, r in enumerate(rows)
            )
        ]

    edge.service.script = script
    answer = await edge.openai.completions.create(model="tiny", prompt=["a", "b"], n=2, best_of=4)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "a1"), (1, "a3"), (2, "b1"), (3, "b3")]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage.completion_tokens == 8


async def test_new_sampling_fields_reach_the_service(edge: HttpEdge) -> None:
    await edge.openai.completions.create(
        model="tiny",
        prompt="a",
        presence_penalty=0.5,
        frequency_penalty=-1,
        logit_bias={"5": 2, "0": -100},
        extra_body={"repetition_penalty": 1.5, "allowed_token_ids": [5, 6], "bad_words": ["no", [7, 8]]},
    )
    sampling = edge.service.requests[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -1.0, 1.5)
    assert (sampling.logit_bias, sampling.allowed_token_ids) == (((5, 2.0), (0, -100.0)), (5, 6))
    assert (sampling.bad_word_strings, sampling.bad_words) == (("no",), ((7, 8),))


async def test_faults_of_bad_words_are_named_as_the_caller_did(edge: HttpEdge) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await edge.openai.completions.create(model="tiny", prompt="a", extra_body={"bad_words": [""]})
    assert caught.value.param == "bad_words"
    assert "bad_word_strings" not in caught.value.message


async def responses(edge: GrpcEdge, **fields: Any) -> list[pb.GenerateResponse]:
    return [response async for response in edge.stub.Generate(pb.GenerateRequest(**fields))]


async def test_grpc_echo_and_prompt_logprobs(rpc_edge: GrpcEdge) -> None:
    sampling = pb.Sampling(logprobs=2, max_tokens=1)
    first, *rest = await responses(rpc_edge, prompt="abc", sampling=sampling, echo=True, n=2)
    assert not first.chunks
    assert first.HasField("seed")
    assert [len(row.top) for row in first.prompt_logprobs] == [0, 2, 2]
    assert not first.prompt_logprobs[0].HasField("sampled")
    assert [row.sampled.text for row in first.prompt_logprobs[1:]] == [b"b", b"c"]
    assert not any(response.prompt_logprobs or response.HasField("seed") for response in rest)
    texts = ["", ""]
    for response in rest:
        for chunk in response.chunks:
            texts[chunk.index] += chunk.text
    assert texts == ["abcOnce"] * 2
    assert rest[-1].usage.completion_tokens == 2


async def test_grpc_long_prompts_come_in_several_messages(rpc_edge: GrpcEdge) -> None:
    tokens = [97] * 1_200
    sampling = pb.Sampling(prompt_logprobs=0, max_tokens=0)
    got = await responses(rpc_edge, prompt_tokens=pb.TokenIds(ids=tokens), sampling=sampling, whole=True)
    assert [len(response.prompt_logprobs) for response in got] == [512, 512, 176, 0]
    assert [chunk.finish_reason for chunk in got[-1].chunks] == [pb.FINISH_REASON_LENGTH]
    assert (got[-1].usage.prompt_tokens, got[-1].usage.completion_tokens) == (1_200, 0)


async def test_grpc_sampling_fields_reach_the_service(rpc_edge: GrpcEdge) -> None:
    sampling = pb.Sampling(
        presence_penalty=0.5,
        frequency_penalty=0,
        repetition_penalty=2,
        logit_bias={5: 1.5},
        allowed_token_ids=[1, 2],
        bad_words=[pb.TokenIds(ids=[3, 4])],
        bad_word_strings=["no"],
        prompt_logprobs=0,
        max_tokens=1,
    )
    await responses(rpc_edge, prompt="a", sampling=sampling, truncate_prompt_tokens=1)
    (request,) = rpc_edge.service.requests
    got = request.sampling
    assert (got.presence_penalty, got.frequency_penalty, got.repetition_penalty) == (0.5, 0, 2)
    assert (got.logit_bias, got.allowed_token_ids) == (((5, 1.5),), (1, 2))
    assert (got.bad_words, got.bad_word_strings, got.prompt_logprobs) == (((3, 4),), ("no",), 0)
    assert request.truncate_prompt_tokens == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a" * 1_000, "n": 64, "echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt": "a" * 1_000, "n": 64, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": ["a" * 1_000] * 64, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": ["a" * 1_000] * 8, "n": 8, "echo": True, "logprobs": 1, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": "a" * 1_000, "n": 64, "echo": True, "logprobs": 20, "stream": True}, "logprobs"),
    ],
)
async def test_an_answer_that_would_tell_more_of_prompts_than_a_server_can_hold_is_refused(
    edge: HttpEdge, body: dict[str, Any], param: str
) -> None:
    answer = await edge.http.post("/v1/completions", json={"max_tokens": 1, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert all(generation.closed.is_set() for generation in edge.service.generations)


async def test_a_chat_tells_its_prompt_once_for_all_choices(edge: HttpEdge) -> None:
    messages = [{"role": "user", "content": "a" * 1_000}]
    body = {"messages": messages, "n": 64, "max_tokens": 1, "prompt_logprobs": 20}
    answer = await edge.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 64)
