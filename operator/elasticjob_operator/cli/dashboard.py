"""`dashboard`: a web page about the jobs, served on this machine only."""

from __future__ import annotations

import asyncio
import contextlib
import html
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click

from elasticjob_operator.cli import common
from elasticjob_operator.cli.common import target_options, with_client
from elasticjob_operator.client import Client

_HOST = "127.0.0.1"


@click.command()
@target_options
@click.option("-A", "--all-namespaces", is_flag=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free port.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--read-only", is_flag=True, help="Show no buttons, and refuse what they send.")
@click.option("--plain-address", is_flag=True, help="Serve under 127.0.0.1, if the browser cannot find the name.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop after this many seconds.")
def dashboard(
    all_namespaces: bool, port: int, no_browser: bool, read_only: bool, plain_address: bool, timeout: float | None
) -> None:
    """Serve a web page about the jobs: live, with plots, logs and buttons, on this machine only.

    The page has your rights. The address holds a token; who has it can do on the page what you can. Its name is new
    each time, and browsers know by themselves that a name below localhost is this machine. Under a plain address they
    send the page's cookie to every server on this machine.
    """

    # Not at the top: the web server takes a while to import, and every other command does without it.
    from elasticjob_operator.dashboard.guard import PLAIN, Access
    from elasticjob_operator.dashboard.server import Dashboard

    async def work(client: Client) -> None:
        access = Access(frozenset({PLAIN}), read_only=read_only) if plain_address else Access(read_only=read_only)
        shown = Dashboard(client, all_namespaces=all_namespaces, access=access)
        async with contextlib.AsyncExitStack() as stack:
            try:
                address = await stack.enter_async_context(shown.serve(_HOST, port))
            except OSError as error:
                raise common.Misuse(f"--port {port}: cannot be used: {error.strerror}: choose another one") from None
            common.echo(address)
            if not no_browser:
                stack.enter_context(_opened(address))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.Event().wait()

    with_client(work)


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """Opens a browser through a file that only this user can read: other users see the arguments of programs."""
    with tempfile.TemporaryDirectory(prefix="elasticjob-") as folder:
        page = Path(folder) / "dashboard.html"
        target = html.escape(address)
        page.write_text(
            f'<!doctype html><title>ElasticJobs</title><meta http-equiv="refresh" content="0;url={target}">'
        )
        webbrowser.open(page.as_uri())
        yield
