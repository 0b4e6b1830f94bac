"""`make check` refuses what the design forbids: each test plants one violation in a copy of the tree and names it in the refusal."""

import pytest

from tests.architecture.conftest import Tree


@pytest.mark.parametrize("target", ["check-imports", "check-stubs", "check-size"])
def test_the_tree_as_it_stands_passes(tree: Tree, target: str) -> None:
    verdict = tree.check(target)
    assert verdict.passed, verdict.output


@pytest.mark.parametrize(
    ("name", "statement", "broken"),
    [
        ("shared/types.py", "import router.request", "shared.types -> router.request"),
        ("protos/__init__.py", "import shared.types", "protos -> shared.types"),
        ("router/request.py", "import worker.plan", "router.request -> worker.plan"),
        ("worker/plan.py", "import router.request", "worker.plan -> router.request"),
        ("kernels/backend.py", "import worker.plan", "kernels.backend -> worker.plan"),
        ("kernels/backend.py", "import shared.types", "kernels.backend -> shared.types"),
        ("router/request.py", "import kernels", "router.request -> kernels"),
    ],
)
def test_an_import_against_the_layers_is_refused(tree: Tree, name: str, statement: str, broken: str) -> None:
    tree.append(name, f"\n{statement}\n")
    verdict = tree.check("check-imports")
    assert not verdict.passed
    assert broken in verdict.output


@pytest.mark.parametrize(
    "name", ["router/request.py", "shared/types.py", "worker/scheduler/scheduler.py", "worker/plan.py"]
)
def test_torch_above_the_engine_is_refused(tree: Tree, name: str) -> None:
    tree.append(name, "\nimport torch\n")
    verdict = tree.check("check-imports")
    assert not verdict.passed
    assert f"{name.removesuffix('.py').replace('/', '.')} -> torch" in verdict.output


def test_torch_behind_another_module_of_the_router_is_refused(tree: Tree) -> None:
    tree.append("router/heavy.py", '"""Planted."""\n\ndef load():\n    import torch\n')
    tree.append("router/request.py", "\nimport router.heavy\n")
    verdict = tree.check("check-imports")
    assert not verdict.passed
    assert "router.heavy -> torch" in verdict.output


@pytest.mark.parametrize("package", ["grpc", "gguf", "opentelemetry", "prometheus_client"])
def test_an_edge_library_in_the_engine_is_refused(tree: Tree, package: str) -> None:
    tree.append("worker/engine/engine.py", f"\nimport {package}\n")
    verdict = tree.check("check-imports")
    assert not verdict.passed
    assert f"worker.engine.engine -> {package}" in verdict.output


@pytest.mark.parametrize("name", ["router/dispatch/dispatcher.py", "worker/scheduler/scheduler.py", "shared/errors.py"])
def test_a_stub_imported_outside_the_wire_is_refused(tree: Tree, name: str) -> None:
    tree.append(name, "\nfrom protos import worker_pb2\n")
    verdict = tree.check("check-imports")
    assert not verdict.passed
    assert f"{name.removesuffix('.py').replace('/', '.')} -> protos.worker_pb2" in verdict.output


@pytest.mark.parametrize(("lines", "allowed"), [(400, True), (401, False)])
def test_a_file_may_have_400_lines_and_no_more(tree: Tree, lines: int, allowed: bool) -> None:
    tree.append("router/planted.py", '"""Planted."""\n' + "VALUE = 1\n" * (lines - 1))
    verdict = tree.check("check-size")
    assert verdict.passed is allowed
    assert ("router/planted.py: 401 lines, 400 allowed" in verdict.output) is not allowed


def _function(lines: int) -> str:
    return '"""Planted."""\n\n\n@property\ndef planted():\n' + "    value = 1\n" * (lines - 2)


@pytest.mark.parametrize(
    ("name", "lines", "allowed"),
    [
        ("worker/planted.py", 60, True),
        ("worker/planted.py", 61, False),
        ("kernels/planted.py", 150, True),
        ("kernels/planted.py", 151, False),
        ("worker/models/planted.py", 61, True),
    ],
)
def test_a_function_may_have_60_lines_and_150_where_one_formula_is_one_function(
    tree: Tree, name: str, lines: int, allowed: bool
) -> None:
    tree.append(name, _function(lines))
    verdict = tree.check("check-size")
    assert verdict.passed is allowed
    assert (f"{name}:5: planted has {lines} lines" in verdict.output) is not allowed


def test_stubs_older_than_their_proto_are_refused(tree: Tree) -> None:
    tree.append("protos/worker.proto", "\nmessage Planted {\n  uint32 value = 1;\n}\n")
    verdict = tree.check("check-stubs")
    assert not verdict.passed
    assert "protos/worker_pb2.py: stale" in verdict.output
    assert "protos/inference_pb2.py" not in verdict.output


def test_missing_and_left_over_stubs_are_refused(tree: Tree) -> None:
    (tree.root / "protos/worker_pb2.pyi").unlink()
    tree.append("protos/gone_pb2.py", "")
    verdict = tree.check("check-stubs")
    assert not verdict.passed
    assert "protos/worker_pb2.pyi: missing" in verdict.output
    assert "protos/gone_pb2.py: has no .proto" in verdict.output


def test_make_proto_mends_stale_stubs(tree: Tree) -> None:
    tree.append("protos/worker.proto", "\nmessage Planted {\n  uint32 value = 1;\n}\n")
    assert tree.check("proto").passed
    assert tree.check("check-stubs").passed


@pytest.mark.parametrize(
    ("target", "name", "text", "named"),
    [
        ("check-format", "shared/planted.py", '"""Planted."""\n\nVALUE=1\n', "shared/planted.py"),
        ("check-lint", "shared/planted.py", '"""Planted."""\n\nimport os\n', "F401"),
        ("check-lint", "shared/planted.py", "VALUE = 1\n", "D100"),
        (
            "check-types",
            "shared/planted.py",
            '"""Planted."""\n\n\ndef planted(value):\n    return value\n',
            "shared/planted.py:4",
        ),
    ],
)
def test_form_and_types_are_held(tree: Tree, target: str, name: str, text: str, named: str) -> None:
    tree.append(name, text)
    if target == "check-types":
        tree.take_types()
    verdict = tree.check(target)
    assert not verdict.passed
    assert named in verdict.output
