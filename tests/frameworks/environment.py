"""Where `make frameworks` installs the training stacks, and the programs that use them."""

from __future__ import annotations

import os
from pathlib import Path

from operator_fixture import ROOT

BIN = Path(os.environ.get("ELASTICJOB_FRAMEWORKS", ROOT / ".work/frameworks")) / "bin"
PROGRAMS = Path(__file__).parent / "programs"
