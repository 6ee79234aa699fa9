"""An agent's connection to a hub with a name, of which nobody takes leave: its process ends while it connects.

A thread that is no daemon keeps the process, as one of a library may, until the agent has come again two times.
Arguments: a file with a token.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

from elasticjob.agent.hub_client import Hub
from elasticjob.env import Settings
from elasticjob.protocol import wire


def outlive(hub: socket.socket) -> None:
    threading.main_thread().join()
    for _ in range(2):
        hub.accept()[0].close()


def main() -> None:
    hub = socket.create_server(("localhost", 0))
    hub.settimeout(20.0)
    settings = Settings(
        hub_url=f"ws://localhost:{hub.getsockname()[1]}", token_file=Path(sys.argv[1]), pod_ip="127.0.0.1"
    )
    Hub(settings, {}, wire.AgentState(), lambda view: None).start()
    hub.accept()[0].close()
    threading.Thread(target=outlive, args=(hub,)).start()


main()
