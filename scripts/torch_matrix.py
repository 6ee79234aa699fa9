"""Runs the worker's tests under several versions of torch, each in its own environment, and prints a table.

    make torch-matrix TORCH="2.6.0 2.13.0 2.15.0"

The version that `make setup` installed in .venv runs there. For each other version an environment is created below
.work/torch, or below ELASTICJOB_TORCH_ENVIRONMENTS, and kept: 5 GB for each CUDA build, which is what PyPI has.
`PYTEST_ARGS` are passed on; SUITES="worker sessions" runs only these.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = ROOT / ".venv/bin/python"
UV = os.environ.get("UV", "uv")  # pip takes minutes to unpack a build for CUDA
HOME = Path(os.environ.get("ELASTICJOB_TORCH_ENVIRONMENTS", ROOT / ".work/torch"))
SUITES = {
    "worker": ["tests/worker"],
    "training": ["tests/integration/test_training.py"],
    "sessions": ["tests/integration/test_sessions.py"],
    "gallery": ["tests/integration/test_gallery.py"],
}
SUITE_NAMES = os.environ.get("SUITES", "").split() or list(SUITES)
# torch pins versions of these itself.
_TORCH_DECIDES = ("torch==", "sympy==", "networkx==", "fsspec==")


def main(versions: list[str]) -> int:
    """Return 1 if a test failed."""
    wanted = [version.removeprefix("torch==") for version in versions]
    rows = [[f"torch {version}", *run(version, prepare(version))] for version in wanted]
    head = ["", *SUITE_NAMES]
    print("\n" + "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]))
    return int(any("failed" in cell or "error" in cell or cell.startswith("exit") for row in rows for cell in row))


def prepare(version: str) -> Path:
    """The interpreter of the environment for this version; creates it if necessary."""
    if find_installed() == version:
        HOME.mkdir(parents=True, exist_ok=True)
        return OWN
    home = HOME / version
    python, done = home / "bin/python", home / ".ok"
    if done.exists():
        return python
    print(f"torch {version}: making {home}", flush=True)
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)], check=True)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if not pin.startswith(_TORCH_DECIDES)) + "\n")
    places = (f"{ROOT}[dev]", str(ROOT / "devcluster"), str(ROOT / "worker_image"))
    own = [part for place in places for part in ("-e", place)]
    wanted = [f"torch=={version}", "-c", str(constraints), *own]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", str(python), *wanted], check=True)
    done.touch()
    return python


def find_installed() -> str | None:
    """The version of torch in .venv, without its build suffix; None if torch is not installed."""
    command = [str(OWN), "-c", "from importlib.metadata import version; print(version('torch'))"]
    try:
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return output.strip().partition("+")[0]


def run(version: str, python: Path) -> list[str]:
    """pytest's counts for each suite; its output is written to a file next to the environment."""
    cells = []
    more = shlex.split(os.environ.get("PYTEST_ARGS", ""))
    for name in SUITE_NAMES:
        log = HOME / f"{version}-{name}.log"
        with log.open("wb") as output:
            command = [str(python), "-m", "pytest", "-q", *SUITES[name], *more]
            code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        cells.append(read_outcome(log.read_text(errors="replace"), code))
        print(f"torch {version}: {name}: {cells[-1]} ({log})", flush=True)
    return cells


def read_outcome(log: str, code: int) -> str:
    """The counts of pytest's last line, without its times."""
    lines = log.strip().splitlines()
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", lines[-1] if lines else "")
    return ", ".join(counts) or f"exit code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
