"""The programs that serve the page: what they print, how they open a browser, and what they do without."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.conftest import visiting
from dashboard.fake_api import FakeApi, served
from elasticjob_operator.cli.root import run
from operator_fixture import wait_for

pytestmark = pytest.mark.timeout(600)

PATIENCE = 300
CLI = (sys.executable, "-m", "elasticjob_operator.cli", "dashboard")


def listen_to_ctrl_c() -> None:
    """Between fork and exec: a shell starts its background jobs with SIGINT ignored, and programs inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def test_the_browser_gets_the_address_in_a_file_of_the_user(api: FakeApi, tmp_path: Path) -> None:
    """Other users of the machine see the arguments of programs, and must not see the token."""
    opener, copied = tmp_path / "opener", tmp_path / "copied"
    opener.write_text(
        f'#!/bin/sh\nstat -c %a "$(dirname "${{1#file://}}")" > {copied}.mode\ncp "${{1#file://}}" {copied}\n'
    )
    opener.chmod(0o755)
    async with served(api, tmp_path) as kubeconfig:
        environment = os.environ | {"BROWSER": f"{opener} %s", "TMPDIR": str(tmp_path)}
        command = [*CLI, "--kubeconfig", kubeconfig]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            preexec_fn=listen_to_ctrl_c,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                address = (await process.stdout.readline()).decode().strip()
                seen = lambda: copied.exists() and f"url={address}" in copied.read_text()  # noqa: E731
                await asyncio.to_thread(wait_for, seen, "the browser gets the address", PATIENCE)
                assert Path(f"{copied}.mode").read_text() == "700\n"
                async with visiting() as visitor, visitor.get(address) as answer:
                    assert answer.status == 200
                process.send_signal(signal.SIGINT)
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, errors.strip()) == (130, b"")
    assert not list(tmp_path.glob("elasticjob-*")), "the file with the token is gone"


async def test_a_port_in_use_is_an_error_in_words(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(api, tmp_path) as kubeconfig:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            command = ["dashboard", "--kubeconfig", kubeconfig, "--no-browser", "--port", port]
            assert await asyncio.to_thread(run, command) == 2
    assert capsys.readouterr().err.startswith(f"error: --port {port}: cannot be used")


def test_the_operators_image_has_what_the_page_needs() -> None:
    """It has no rich; and the command line imports no web server for its other commands."""
    all_commands = (
        "from elasticjob_operator.cli.root import COMMANDS, cli; [cli.get_command(None, c) for c in COMMANDS]"
    )
    for module, without in (
        ("import elasticjob_operator.dashboard.__main__", ("rich", "kopf")),
        (all_commands, ("aiohttp.web", "elasticjob_operator.dashboard.server")),
    ):
        program = f"import sys; {module}; print([name for name in {without} if name in sys.modules])"
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
        )
        assert result.stdout.strip() == "[]", module
