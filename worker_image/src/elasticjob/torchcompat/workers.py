"""How torch's elastic agent starts its worker processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from elasticjob.torchcompat import probe
from elasticjob.torchcompat.probe import Probe

_FACTORY = "torch.distributed.elastic.multiprocessing.api.get_subprocess_handler"
_HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.SubprocessHandler"

# Arguments, environment, standard output and standard error (files; None: inherited) of a worker; returns an object
# like subprocess.Popen.
Start = Callable[[tuple[str, ...], Mapping[str, str], Any, Any], Any]


def replace_start(start: Start) -> bool:
    """Make torch's agent start its workers with this function. False: torch continues to start them itself."""
    if not STARTS.holds():
        return False
    base: Any = probe.find(_HANDLER)

    class Handler(base):  # type: ignore[misc]
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            return start(tuple(args), env, self._stdout, self._stderr)

    probe.find(_FACTORY.rpartition(".")[0]).get_subprocess_handler = Handler
    return True


def _look() -> bool:
    parameters = list(inspect.signature(probe.find(f"{_HANDLER}._popen")).parameters)
    is_there = probe.find(_FACTORY) is not None and probe.stores(_HANDLER, "_stdout", "_stderr", "_popen")
    return is_there and parameters == ["self", "args", "env"]


STARTS = Probe(
    "workers come from the standby, with torch imported",
    (_FACTORY, f"{_HANDLER}._popen", f"{_HANDLER}._stdout", f"{_HANDLER}._stderr"),
    "torch starts them, cold: each imports torch",
    _look,
)
PROBES = (STARTS,)
