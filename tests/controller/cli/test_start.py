"""How much is imported before a command does something: modules are counted, since seconds depend on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from elasticjob_operator.cli.root import COMMANDS, cli

# Run as the console script is, and tell at the end what was imported.
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from elasticjob_operator import cli
sys.argv = ["kubectl-elasticjob", *{arguments}]
cli.main()
"""
UNUSED = ("requests", "kubernetes.client", "kubernetes.config", "kubernetes.aio.dynamic", "kubernetes.aio.watch")
OTHER_COMMANDS = (
    *("elasticjob_operator.convert", "elasticjob_operator.html_report", "elasticjob_operator.dashboard"),
    *("elasticjob_operator.cli.report", "elasticjob_operator.cli.chaos", "aiohttp.web"),
)


@pytest.mark.parametrize(
    ("arguments", "most", "without"),
    [
        pytest.param(["--help"], 200, ("aiohttp", "kubernetes.aio.client", "pydantic", "rich.console"), id="help"),
        pytest.param(["no-such-command"], 200, ("aiohttp", "kubernetes.aio.client", "pydantic"), id="mistake"),
        pytest.param(
            ["list", "--kubeconfig", "/no/such/file"],
            590,
            (*UNUSED, *OTHER_COMMANDS, "elasticjob_operator.launch"),
            id="list",
        ),
        pytest.param(
            ["submit", "-f", "/no/such/file"],
            590,
            (*UNUSED, *OTHER_COMMANDS, "elasticjob_operator.launch.start", "elasticjob_operator.launch.local"),
            id="submit",
        ),
    ],
)
def test_a_command_imports_what_it_needs(arguments: list[str], most: int, without: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 2), done.stderr
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    assert imported & set(without) == set()
    assert len(imported) <= most


@pytest.mark.parametrize("mine", [{}, {"SSL_CERT_FILE": "/mine", "SSL_CERT_DIR": "/mine.d"}], ids=["unset", "set"])
def test_a_command_reads_the_certificates_of_the_machine_for_none_of_its_imports(mine: dict[str, str]) -> None:
    """aiohttp makes a default for TLS when it is imported: it finds no certificates then, and whoever comes later does.

    Such as the credential plugin of a kubeconfig, which gets this environment.
    """
    program = """
import json, os, ssl, sys
names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
seen, real = [], ssl.SSLContext.set_default_verify_paths
def look(context):
    seen.append([os.environ.get(name) for name in names])
    real(context)
ssl.SSLContext.set_default_verify_paths = look
from elasticjob_operator import cli
sys.argv = ["kubectl-elasticjob", "list", "--kubeconfig", "/no/such/file"]
try:
    cli.main()
finally:
    print(json.dumps([seen, [os.environ.get(name) for name in names]]))
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT_")} | mine
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False, env=environ
    )
    assert done.returncode == 2, done.stderr
    seen, left = json.loads(done.stdout)
    assert seen, "aiohttp makes no default any more: load_without_certificates can go"
    assert all(found == [os.devnull, os.devnull] for found in seen)
    assert left == [mine.get("SSL_CERT_FILE"), mine.get("SSL_CERT_DIR")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_group_is_that_of_the_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert COMMANDS[name].help == ("" if command.hidden else command.get_short_help_str(limit=200))
