"""Leaves an orphaned child process behind, and continues to train."""

import os
import sys
import time
from pathlib import Path

if not os.fork():
    if not os.fork():
        file = Path(sys.argv[1])
        file.with_suffix(".part").write_text(str(os.getpid()))
        file.with_suffix(".part").rename(file)
        os.execvp("sleep", ["sleep", "1000"])
    os._exit(0)
os.wait()
time.sleep(1000)
