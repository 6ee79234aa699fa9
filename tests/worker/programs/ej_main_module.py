"""Uses its own main module as scripts do: pickles its classes, spawns processes, and starts itself again."""

import concurrent.futures
import multiprocessing
import os
import pickle
import sys
import threading
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Own:
    number: int


def double(own: Own) -> Own:
    return Own(2 * own.number)


def say_at_the_end() -> None:
    threading.main_thread().join()
    Path(sys.argv[1]).write_text(f"{Own.__module__} {sys.modules['__main__'].__name__} {type(FOUND).__name__}\n")


if __name__ == "__main__":
    FOUND = pickle.loads(pickle.dumps(Own(1)))
    assert isinstance(FOUND, Own)
    if len(sys.argv) < 3:
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(double, FOUND).result(timeout=100) == Own(2)
        sys.stdout.flush()
        os.execv(sys.executable, [*sys.orig_argv, "again"])
    threading.Thread(target=say_at_the_end).start()
