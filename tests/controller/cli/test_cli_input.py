"""Input of the command line: a file that would exhaust memory, and unknown fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from controller import client_fixture as given
from elasticjob_operator.cli.root import run
from elasticjob_operator.client import Client
from elasticjob_operator.client.documents import DocumentError, load_documents

LAUGHS = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
a: &a [x, x, x, x, x, x, x, x, x, x]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]
f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]
g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f, *f]
h: &h [*g, *g, *g, *g, *g, *g, *g, *g, *g, *g]
i: [*h, *h, *h, *h, *h, *h, *h, *h, *h, *h]
"""


MERGES = f"""
a: &a {{k: 1}}
b: &b {{<<: [{", ".join(["*a"] * 60)}]}}
c: &c {{<<: [{", ".join(["*b"] * 60)}]}}
d: &d {{<<: [{", ".join(["*c"] * 60)}]}}
"""  # 216,000 times the one pair, and one more line would be 13 millions


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(MERGES, "has more than 100000 values after expanding aliases (*name)", id="merges"),
        pytest.param(LAUGHS, "has more than 100000 values after expanding aliases (*name)", id="laughs"),
        pytest.param(f"a: &a {'x' * 90_000}\nb: [{'*a, ' * 400}*a]", "has more than 16777216 bytes after", id="texts"),
        pytest.param("a: &a [*a]", "has more than 100000 values", id="itself"),
        pytest.param(f"a: &a [{'x, ' * 2_000}x]\nb: [{'*a, ' * 2_000}*a]", "has more than 100000 values", id="square"),
        pytest.param("a: " + "[" * 80 + "]" * 80, "is nested 81 levels deep; the limit is 64", id="deep"),
        pytest.param("a: " + "[" * 1200 + "]" * 1200, "is nested ", id="too-deep-for-the-parser"),
    ],
)
@pytest.mark.parametrize("command", [("convert", "-o", "json"), ("submit", "--dry-run")])
def test_a_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], text: str, told: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert run([*command, "-f", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("value", "told"),
    [
        pytest.param("9" * 5000, "a number of 5000 characters", id="digits"),
        pytest.param("!!int 1" + ":0" * 3000, "a number of 6001 characters", id="sixties"),
        pytest.param("!!int x", "no int (invalid literal", id="no int"),
        pytest.param("!!int ''", "no int (", id="no digit"),
        pytest.param("!!bool x", "no bool (", id="no bool"),
        pytest.param("!!float x", "no float (", id="no float"),
        pytest.param("!!timestamp x", "a value of 'timestamp', which JSON does not have", id="time"),
        pytest.param("!!binary aGk=", "a value of 'binary', which JSON does not have", id="bytes"),
        pytest.param("!!set {x}", "a value of 'set', which JSON does not have", id="set"),
    ],
)
@pytest.mark.parametrize("command", [("convert",), ("submit", "--dry-run", "-o", "json")])
def test_a_value_of_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], value: str, told: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"kind: ElasticJob\na: {value}\n")
    assert run([*command, "-f", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"is not valid YAML: {told}" in said.err and "line 2" in said.err


@pytest.mark.parametrize("day", ["2026-01-01", "2026-99-99", "2026-01-01T25:00:00Z"])
def test_what_looks_like_a_date_is_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], day: str) -> None:
    manifest = given.manifest()
    manifest["metadata"]["annotations"] = {"day": "DAY"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest).replace("DAY", day))
    assert run(["submit", "-f", str(path), "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["annotations"] == {"day": day}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30:45", "12:30:45"), ("1:2", "1:2"), ("1e3", 1000.0), ("-.5", -0.5), ("1.", 1.0), ("0x1F", 31), ("010", 8),
        ("-5", -5), ("0", 0), ("1.2.3", "1.2.3"), ("1_000", 1000),
    ],
)  # fmt: skip
def test_numbers_are_what_kubernetes_takes_for_numbers(text: str, value: object) -> None:
    (found,) = load_documents(f"a: {text}")
    assert (found["a"], type(found["a"])) == (value, type(value))


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e999"])
def test_a_number_that_json_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="JSON has neither infinity nor NaN"):
        load_documents(f"a: {text}")


def test_a_text_within_a_file_has_the_bounds_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {
        "entrypoint": "python a.py",
        "runtimeEnvYAML": LAUGHS,
        "rayClusterSpec": {"headGroupSpec": {"template": {}}},
    }
    path = tmp_path / "job.yaml"
    path.write_text(
        yaml.safe_dump({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "r"}, "spec": spec})
    )
    assert run(["convert", "-f", str(path)]) == 2
    assert "spec.runtimeEnvYAML: has more than 100000 values" in capsys.readouterr().err


def test_a_misspelt_field_is_named_before_anything_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(given.manifest(replica=2)))
    assert run(["submit", "-f", str(path), "--dry-run"]) == 2
    assert "spec.replica: is not a field of ElasticJob: did you mean spec.replicas?" in capsys.readouterr().err


async def test_a_job_is_sent_with_strict_validation(tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        made: dict[str, Any] = await request.json()
        return web.json_response(made, status=201)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        async with Client(kubeconfig=str(path), namespace="a") as client:
            await client.submit(given.manifest())
            await client.submit(given.manifest(), dry_run=True)
    finally:
        await runner.cleanup()
    assert asked == [{"fieldValidation": "Strict"}, {"fieldValidation": "Strict", "dryRun": "All"}]
