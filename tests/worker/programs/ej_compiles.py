"""Loads a library, and builds it before if it is not there, as torch.compile does: OUT HOW"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    out, how = Path(sys.argv[1]), sys.argv[2]
    if how == "heeds nothing":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    library = out / "library"
    if not library.exists():
        subprocess.run([out / "ld", library], check=True)
    whole = library.read_text() == "the first half, the second half"
    (out / f"{'trains' if whole else 'torn'}-{os.environ['ELASTICJOB_GENERATION']}").touch()
    time.sleep(1000)


if __name__ == "__main__":
    main()
