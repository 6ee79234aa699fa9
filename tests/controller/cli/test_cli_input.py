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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(LAUGHS, "has more than 100000 values after expanding aliases (*name)", id="laughs"),
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
