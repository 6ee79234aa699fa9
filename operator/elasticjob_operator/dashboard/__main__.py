"""`python -m elasticjob_operator.dashboard`: the page in a cluster, read-only, behind a proxy that authenticates."""

from __future__ import annotations

import asyncio
import signal
import sys

import click

from elasticjob_operator.client import Client
from elasticjob_operator.dashboard.guard import Access, host_name
from elasticjob_operator.dashboard.server import Dashboard
from elasticjob_operator.rest.json_stream import DEEPEST_JSON


@click.command()
@click.option("--namespace", default="", help="Show only the jobs of this namespace.")
@click.option("--host", default="0.0.0.0", show_default=True, help="The address to listen on.")  # noqa: S104
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--allowed-host", "hosts", multiple=True, required=True, help="A name under which users reach the page.")
def main(namespace: str, host: str, port: int, hosts: tuple[str, ...]) -> None:
    """Serve the page about the jobs to everybody who reaches it: a proxy before it must authenticate them."""
    sys.setrecursionlimit(DEEPEST_JSON)
    asyncio.run(serve(namespace, host, port, hosts))


async def serve(namespace: str, host: str, port: int, hosts: tuple[str, ...]) -> None:
    """Serve until the process is asked to end."""
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    access = Access(frozenset(map(host_name, hosts)), behind_proxy=True, read_only=True)
    async with Client(namespace=namespace or None) as client:
        page = Dashboard(client, all_namespaces=not namespace, access=access)
        async with page.serve(host, port) as address:
            click.echo(f"serving {address}")
            await over.wait()


if __name__ == "__main__":
    main()
