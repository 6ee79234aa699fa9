"""A store that speaks S3, as a process beside the tests: `stores/serving.py`, in the environment of its clients."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = Path(os.environ.get("ELASTICJOB_STORES", ROOT / ".work/stores")) / "bin/python"
CLOUDS_PYTHON = Path(os.environ.get("ELASTICJOB_CLOUDS", ROOT / ".work/clouds")) / "bin/python"
MISSING = "no environment with s3fs and moto: make stores-env"
CLOUDS_MISSING = "no environment with gcsfs, adlfs and their servers: make clouds"
BUCKET = "my-bucket"


def find_packages() -> Path:
    """Where s3fs is: a pod that has this in PYTHONPATH has `elasticjob[s3]`."""
    return next(PYTHON.parents[1].glob("lib/python*/site-packages"))


class S3Server:
    """Asks everybody for a right, and answers for as long as the process lives."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = str(self._read())

    def change_keys(self, user: str) -> dict[str, str]:
        """The keys of a Secret: a new access key of this user. Those before are refused from now on."""
        found: dict[str, str] = self._ask("keys", user)
        return found

    def find_saves(self, url: str) -> list[list[str]]:
        """The files of each save in this archive, newest first."""
        found: list[list[str]] = self._ask("saves", url)
        return found

    def _ask(self, *words: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server ended: see its output"
        return json.loads(line)


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    command = [str(PYTHON), str(ROOT / "tests/stores/serving.py")]
    env = os.environ | {"PYTHONPATH": str(ROOT / "worker_image/src")}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield S3Server(process)
        finally:
            process.terminate()
