"""Where `make frameworks` installs the training stacks, and the programs that use them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from operator_fixture import ROOT

BIN = Path(os.environ.get("ELASTICJOB_FRAMEWORKS", ROOT / ".work/frameworks")) / "bin"
PROGRAMS = Path(__file__).parent / "programs"


def require(*modules: str) -> None:
    """Skip where the environment lacks one of them: not every machine can install all."""
    look = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    if subprocess.run([str(BIN / "python"), "-c", look, *modules], check=False).returncode:
        pytest.skip(f"the environment of `make frameworks` lacks one of {', '.join(modules)}")
