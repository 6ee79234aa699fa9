"""What Argo CD concludes from a job: the script that is shipped for it, in the Lua that it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lupa import lua51

SCRIPT: Final = Path(__file__).parents[1] / "manifests/argocd/health.lua"


def compute(raw: Mapping[str, Any]) -> tuple[str, str]:
    """Health and message."""
    lua = lua51.LuaRuntime()
    lua.globals().obj = lua.table_from(raw, recursive=True)
    found = lua.execute(SCRIPT.read_text())
    return str(found["status"]), str(found["message"])
