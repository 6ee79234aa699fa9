"""The checks of the device: what none has seen first, then the most valuable, as time may end before they do.

Imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    function: str  # module:function
    seconds: float  # its limit


CHECKS: dict[str, Check] = {
    "facts": Check("gpu.machine:facts", 45),
    # No device has seen these yet, or not to their end.
    "trail": Check("gpu.sessions:trail", 60),
    "power": Check("gpu.sessions:power", 60),
    "hang-elsewhere": Check("gpu.hang:paused_elsewhere", 60),
    "late-graph": Check("gpu.sessions:graph", 60),
    "late-functional": Check("gpu.sessions:functional", 60),
    "late-stream": Check("gpu.sessions:stream", 60),
    "capturable": Check("gpu.sessions:capturable", 60),
    "agents-session": Check("gpu.agents:in_session", 70),
    "agents-restart": Check("gpu.agents:restarted", 60),
    "contract-streams": Check("gpu.contract:streams", 60),
    "contract-worlds": Check("gpu.contract:worlds", 60),
    "fence": Check("gpu.machine:fence", 130),
    # The others have been seen on one, but for snapshots of 12 GiB, which take long.
    "session-killed": Check("gpu.sessions:killed", 70),
    "snapshots": Check("gpu.machine:snapshots", 170),
    "join-source-dies": Check("gpu.sessions:source_dies", 90),
    "session-virtual-killed": Check("gpu.sessions:virtual_killed", 70),
    "contract-death": Check("gpu.contract:death", 60),
    "regroups": Check("gpu.sessions:regroups", 60),
    "hang": Check("gpu.hang:paused", 60),
    "doctor": Check("gpu.machine:doctor", 90),
    "session-scaler-killed": Check("gpu.sessions:scaler_killed", 60),
    "fsdp-killed": Check("gpu.sessions:fsdp_killed", 60),
    "vision": Check("gpu.sessions:vision", 60),
    "gan": Check("gpu.sessions:gan", 60),
    "loss-in-creation": Check("gpu.sessions:loss_in_creation", 60),
    "contract-two-communicators": Check("gpu.contract:two_communicators", 50),
    "growth": Check("gpu.sessions:growth", 60),
    "warm-fork": Check("gpu.machine:warm_fork", 40),
    "compiled": Check("gpu.sessions:compiled", 90),
    "contract-watchdog": Check("gpu.contract:watchdog", 60),
}
