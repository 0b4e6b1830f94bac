"""A client that has nothing of ours but the .proto file."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.e2e.stack import RunningStack

SCRIPT = """
import sys
import grpc
from protos import inference_pb2 as pb, inference_pb2_grpc

assert __file__.startswith(pb.__file__.rsplit("/", 2)[0]), pb.__file__
target, model = sys.argv[1:]
stub = inference_pb2_grpc.InferenceStub(grpc.insecure_channel(target))

def ask(**fields):
    sampling = pb.Sampling(temperature=0, max_tokens=24, **fields.pop("sampling", {}))
    return stub.Generate(pb.GenerateRequest(model=model, sampling=sampling, **fields), timeout=60)

def texts(responses):
    joined = {}
    ends = []
    for response in responses:
        for chunk in response.chunks:
            joined[chunk.index] = joined.get(chunk.index, "") + chunk.text
            if chunk.finish_reason:
                ends.append(chunk.index)
    assert sorted(ends) == sorted(joined), (ends, joined)
    return joined

chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
assert list(texts(ask(chat=chat))) == [0]
free = texts(ask(prompt="The quick"))[0]
assert texts(ask(prompt="The quick", whole=True))[0] == free
assert len(texts(ask(prompt="The quick", n=4))) == 4
stop = free[len(free) // 2 :][:3]
assert texts(ask(prompt="The quick", sampling={"stop": [stop]}))[0] == free[: free.index(stop)]
rows = [row for response in ask(prompt="The quick", sampling={"logprobs": 3}) for chunk in response.chunks for row in chunk.logprobs]
assert rows and all(len(row.top) == 3 and row.top[0].logprob >= row.top[-1].logprob for row in rows)

call = stub.Generate(pb.GenerateRequest(model=model, prompt="x", sampling=pb.Sampling(max_tokens=400, ignore_eos=True)))
next(iter(call))
call.cancel()
try:
    list(call)
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.CANCELLED
else:
    raise AssertionError("a cancelled call ended well")
ids = stub.Tokenize(pb.TokenizeRequest(model=model, text="The quick brown fox")).tokens
assert stub.Detokenize(pb.DetokenizeRequest(model=model, tokens=ids)).text == "The quick brown fox"
assert [card.id for card in stub.ListModels(pb.ListModelsRequest()).models] == [model]
print("all well")
"""


def test_stubs_made_elsewhere_from_the_proto_alone_do_everything(stack: RunningStack, tmp_path: Path) -> None:
    (tmp_path / "protos").mkdir()
    shutil.copy(ROOT / "protos" / "inference.proto", tmp_path / "protos")
    protoc = ("-m", "grpc_tools.protoc", "-I", ".", "--python_out=.", "--grpc_python_out=.", "protos/inference.proto")
    subprocess.run([sys.executable, *protoc], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "client.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "client.py"), stack.grpc, stack.model]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "all well", done.stderr
