"""`TorchDistributor`, with the interface of PySpark's: a job trains instead of Spark's executors. It needs no PySpark.

    from elasticjob_operator.launch import TorchDistributor  # instead of pyspark.ml.torch.distributor

On this machine a function and its result are pickled into a folder of this user, as PySpark does. To a cluster it
travels as `launch` sends it: as text, with arguments and a result of JSON. Nothing from a network is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pickle
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from elasticjob_operator.client import ClientError
from elasticjob_operator.client.errors import InvalidError
from elasticjob_operator.launch.attach import default_name
from elasticjob_operator.launch.bundle import CodeError
from elasticjob_operator.launch.run import ResultError, Run
from elasticjob_operator.launch.start import CLUSTER, LOCAL, launch, parse_workers
from elasticjob_operator.text import printable

_SCRIPT: Final = "elasticjob_call.py"  # beside nothing that a module of the user could be taken for
_CALL: Final = "call"
_VALUE: Final = "value"
_LAST_LINES_SECONDS: Final = 10.0
_RUNNER: Final = f'''"""Calls the function of a TorchDistributor; rank 0 keeps what it returned."""

import os
import pickle
import sys

if __name__ == "__main__":
    folder = sys.argv.pop()
    with open(os.path.join(folder, "{_CALL}"), "rb") as file:
        sys.path += [path for path in pickle.load(file) if path not in sys.path]
        function, args, kwargs = pickle.load(file)
    value = function(*args, **kwargs)
    if os.environ["RANK"] == "0":
        import cloudpickle

        whole = os.path.join(folder, "{_VALUE}")
        with open(whole + ".part", "wb") as file:
            cloudpickle.dump(value, file)
        os.replace(whole + ".part", whole)
'''


class TorchDistributor:
    """Runs a function or a script as a job, and waits for it.

    `num_processes` is the number of workers, or (min, max) for a job that may be scaled while it trains. `local_mode`:
    on this machine; otherwise on the cluster of the current context, where `use_gpu` asks for one GPU for each worker.
    `job` has further arguments of `launch`, such as `image`, which a cluster needs.
    """

    def __init__(
        self,
        num_processes: int | tuple[int, int] = 1,
        local_mode: bool = True,
        use_gpu: bool = True,
        **job: Any,
    ) -> None:
        parse_workers(num_processes, "num_processes")
        self.num_processes = num_processes
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        self._job = job

    def run(self, train_object: Callable[..., Any] | str | Path, *args: Any, **kwargs: Any) -> Any:
        """Train, print the lines of all ranks, and return what the function returned at rank 0; None for a script.

        The arguments are those of the function, or the words of the script's command line. Raises JobFailedError with
        the traceback of the failed rank, or what `launch` raises. Ctrl-C deletes the job.
        """
        if not callable(train_object):
            if kwargs:
                raise InvalidError(f"run: a script has no keywords: write '--{next(iter(kwargs))}=...' as one word")
            self._train(train_object, [str(word) for word in args])
            return None
        if not self.local_mode:
            return self._train(train_object, find_keywords(train_object, args, kwargs)).result()
        name = default_name(getattr(train_object, "__name__", ""), secrets.token_hex(2))
        with tempfile.TemporaryDirectory(prefix="elasticjob-") as folder:
            script = write_call(Path(folder), train_object, args, kwargs)
            run = self._train(script, [folder], {"name": name, **self._job})
            return read_value(Path(folder), run.name)

    def _train(
        self,
        target: Callable[..., Any] | str | Path,
        arguments: Mapping[str, Any] | Sequence[str],
        job: Mapping[str, Any] | None = None,
    ) -> Run:
        given = dict(self._job if job is None else job)
        if not self.local_mode:
            given = {"gpus": 1 if self.use_gpu else 0, **given}
        on = LOCAL if self.local_mode else CLUSTER
        run = launch(target, arguments, workers=self.num_processes, on=on, **given)
        printer = threading.Thread(target=_print_lines, args=(run,), name="elasticjob-lines", daemon=True)
        printer.start()
        try:
            run.wait(progress=False)
        except KeyboardInterrupt:
            run.delete()
            raise
        finally:
            printer.join(_LAST_LINES_SECONDS)
        return run


def _print_lines(run: Run) -> None:
    with contextlib.suppress(ClientError):  # `wait` tells it
        for line in run.logs(follow=True):
            print(printable(line), flush=True)


def find_keywords(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, as they travel to a cluster. Raises InvalidError for those without one."""
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError) as error:
        raise InvalidError(f"run: the arguments do not fit the function: {error}") from None
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise InvalidError(f"run: {name}: arguments travel to a cluster by name: give the function one for each")
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found


def write_call(folder: Path, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Path:
    """The script that makes this call, with the call beside it. Raises InvalidError or CodeError."""
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        raise InvalidError(
            "train_object: a function is pickled with cloudpickle, which is not installed: pip install cloudpickle, "
            "or name a script"
        ) from None
    try:
        call = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:  # whatever the user's objects raise
        kind = type(error).__name__
        raise CodeError(f"train_object: the function or its arguments cannot be pickled: {kind}: {error}") from error
    (folder / _CALL).write_bytes(pickle.dumps(list(sys.path)) + call)
    script = folder / _SCRIPT
    script.write_text(_RUNNER)
    return script


def read_value(folder: Path, job: str) -> Any:
    """What the function returned at rank 0. Raises ResultError."""
    path = folder / _VALUE
    if not path.exists():
        raise ResultError(f"{job}: no result: rank 0 ended before the function returned")
    try:
        return pickle.loads(path.read_bytes())  # noqa: S301 - written by a process of this user, into its own folder
    except Exception as error:  # whatever the user's objects raise
        raise ResultError(f"{job}: no result: it cannot be unpickled: {type(error).__name__}: {error}") from error
