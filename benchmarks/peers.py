"""`python -m benchmarks.peers install`: torchft and DLRover in a separate environment, `.work/peers`.

They share the project's torch, so that both sides use the same one, and everything else that is pinned in
`constraints.txt`. Their further packages are pinned in `benchmarks/peers.txt`. The project's environment stays
unchanged. The benchmarks work without them: `find_missing` lists what is missing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness

PLACE = harness.ROOT / ".work" / "peers"
BIN = PLACE / "bin"
PINS = harness.ROOT / "benchmarks" / "peers.txt"
CONSTRAINTS = harness.ROOT / "constraints.txt"
COMMAND = "python -m benchmarks.peers install"


def parse_pins(text: str) -> dict[str, str]:
    """The version of each package in a requirements file that pins them all."""
    return dict(re.findall(r"^([\w.-]+)==([^\s#]+)", text, re.MULTILINE))


def find_missing(names: Sequence[str], place: Path = PLACE) -> list[str]:
    """The packages that are not installed in the pinned version."""
    pins = parse_pins(PINS.read_text())
    found = {path.name for path in place.glob("lib/python*/site-packages/*.dist-info")}
    return [name for name in names if f"{name.replace('-', '_')}-{pins[name]}.dist-info" not in found]


def install(place: Path = PLACE) -> None:
    """Create the environment, or update it to the pinned versions."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    inside = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Not a plain path: the project itself is installed by a .pth file, which only addsitedir processes.
    project = sysconfig.get_path("purelib")
    Path(inside, "project.pth").write_text(f"import site; site.addsitedir({project!r})\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(PINS), "-c", str(CONSTRAINTS)], check=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("do", choices=("install",))
    parser.parse_args(argv)
    install()
    harness.say(f"torchft and DLRover are in {PLACE.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()
