"""The displayed part of an error, for any length, truncation and surrounding text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.builders import make_node, make_pod
from controller.counted_work import count_calls
from elasticjob_operator.failures import classify
from elasticjob_operator.model import errortext
from elasticjob_operator.model.containers import Exit
from elasticjob_operator.plan import reporting

SHORT = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    int(None)\nValueError: boom'
CHAINED = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError: 7\n\n'
    "During handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "a.py", line 5, in <module>\nRuntimeError: no seven'
)


@pytest.mark.parametrize(
    ("log", "rest", "traceback", "exception"),
    [
        pytest.param(f"step 1\n{SHORT}", "step 1", SHORT, "ValueError: boom", id="at the end"),
        pytest.param(f"a\n{SHORT}\n[rank0] bye", "a\n[rank0] bye", SHORT, "ValueError: boom", id="in the middle"),
        pytest.param(f"a\n{CHAINED}", "a", CHAINED, "RuntimeError: no seven", id="chained"),
        pytest.param(f"{SHORT}\nline 2", "", f"{SHORT}\nline 2", "ValueError: boom", id="a message of two lines"),
        pytest.param(
            '^^^\n  File "a.py", line 9, in f\n    g()\nKeyError: 1', "^^^",
            '  File "a.py", line 9, in f\n    g()\nKeyError: 1', "KeyError: 1", id="its head is cut off",
        ),
        pytest.param("step 1\nstep 2", "step 1\nstep 2", "", "", id="none"),
    ],
)  # fmt: skip
def test_split(log: str, rest: str, traceback: str, exception: str) -> None:
    found = errortext.split(log)
    assert (found.rest, found.traceback) == (rest, traceback)
    assert errortext.exception_of(found.traceback) == exception


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 7, in f
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | KeyError: 'two'
    +------------------------------------"""


@pytest.mark.parametrize("after", ["", "\nepoch 4\nelasticjob: bye"])
def test_a_group_of_exceptions_says_what_is_in_it(after: str) -> None:
    found = errortext.split(f"epoch 3\n{GROUP}{after}")
    assert found.traceback == GROUP
    assert found.rest == f"epoch 3{after}"
    assert (
        errortext.exception_of(GROUP) == "ExceptionGroup: several (2 sub-exceptions): ValueError: one; KeyError: 'two'"
    )


def test_a_group_that_was_handled_is_not_the_last_word() -> None:
    chained = f"{GROUP}\n\nDuring handling of the above exception, another exception occurred:\n\n"
    last = SHORT.replace("boom", "then")
    assert errortext.split(chained + last).traceback == chained + last
    assert errortext.exception_of(chained + last) == "ValueError: then"


def test_a_long_traceback_loses_its_middle() -> None:
    frames = "".join(f'  File "a.py", line {i}, in f{i}\n    f{i + 1}()\n' for i in range(100))
    lines = errortext.shorten(f"Traceback (most recent call last):\n{frames}ValueError: {'x' * 9000}").splitlines()
    assert len(lines) == errortext.LINES
    assert lines[1] == '  File "a.py", line 0, in f0'
    assert lines[3] == "  … 179 lines omitted …"
    assert lines[-3:-1] == ['  File "a.py", line 99, in f99', "    f100()"]
    assert lines[-1].startswith("ValueError: xxx")
    assert len(lines[-1]) == errortext.LINE_LENGTH


def test_a_log_is_cleaned_of_what_only_a_terminal_understands() -> None:
    drawn = "\x1b[32m 10%\x1b[0m\r 20%\r\x1b[K 30%\r\nnext\x07 \u202eline\x00"
    assert errortext.clean(drawn) == " 30%\nnext line"


def test_a_tail_begins_with_a_whole_line() -> None:
    text = errortext.tail("\n".join(f"line {i}" for i in range(1000)))
    assert len(text) <= errortext.TAIL_CHARACTERS
    assert text.startswith("line ")
    assert text.endswith("line 999")
    assert int(text.splitlines()[0].removeprefix("line ")) > 100


BY_NOBODY = (
    ", and no drain, eviction or probe of spec.template is known to have asked for that: its events tell, if a probe "
    "has that a webhook or a policy has added (kubectl events --for pod/digits-worker-0)"
)


def _told(code: int, log: str, reason: str = "Error") -> tuple[str, str, str]:
    """(message, traceback, log tail) of a worker's container that ended so."""
    pod = make_pod(0, "Failed", exit=Exit(code, reason, log))
    failure = classify.failure_of_pod(pod, make_node("node0"), 0)
    return reporting.describe_failure(failure), failure.traceback, failure.log_tail


def test_a_real_program_that_fails_deep_down_is_told_by_its_exception(tmp_path: Path) -> None:
    """As much of its log as a kubelet keeps."""
    program = tmp_path / "deep.py"
    calls = "".join(f"def f{i}(x):\n    return f{i + 1}(x)  # a comment that makes it long\n" for i in range(40))
    program.write_text(f"print('begin', flush=True)\n{calls}def f40(x):\n    return int(x)\nf0(None)\n")
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60)
    message, traceback, tail = _told(ran.returncode, (ran.stdout + ran.stderr)[-2048:])
    said = "TypeError: int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"
    assert message == f"rank 0 (digits-worker-0) failed with exit code 1: {said}"
    assert "in f40" in traceback
    assert traceback.endswith(said)
    assert said not in tail, "each text once"


@pytest.mark.parametrize(
    ("code", "reason", "log", "message"),
    [
        pytest.param(137, "Error", "GPU0] Epoch 671\nEpoch 672", "exit code 137: it was killed (SIGKILL)", id="killed"),
        pytest.param(143, "Error", SHORT, f"exit code 143: it was killed (SIGTERM){BY_NOBODY}", id="terminated"),
        pytest.param(143, "Error", "", f"exit code 143: it was killed (SIGTERM){BY_NOBODY}", id="without a word"),
        pytest.param(137, "Error", "", "exit code 137: it was killed (SIGKILL)", id="killed without a word"),
        pytest.param(
            137, "OOMKilled", "step 1", "exit code 137 [OOMKilled]: it was killed (SIGKILL)", id="out of memory"
        ),
        pytest.param(139, "Error", "Epoch 671", "exit code 139: SIGSEGV", id="a crash in native code"),
        pytest.param(3, "Error", "step 1\nno data left\n======", "exit code 3: no data left", id="no traceback"),
        pytest.param(
            128, "StartError", "exec: nope: not found\nmore", "exit code 128 [StartError]: exec: nope: not found",
            id="never started",
        ),
    ],
)  # fmt: skip
def test_what_is_told_of_a_container(code: int, reason: str, log: str, message: str) -> None:
    told, traceback, _ = _told(code, log, reason)
    assert told.endswith(f"failed with {message}")
    assert traceback == ""


def test_a_text_of_line_ends_alone_costs_few_steps() -> None:
    text = "\n" * 16_384
    assert count_calls(lambda: errortext.shorten(errortext.clean(text))) < 500


LINES: Mapping[str, str] = {
    "line ends": "\n" * 4096,
    "rules": "-\n" * 2048,
    "blanks": " \n" * 2048,
    "words": "a\n" * 2048,
    "frames that are none": ' File "\n' * 500,
    "quotation marks": ' File "' + '"' * 4000,
    "escapes": "\x1b[" * 2048,
    "overwritten": "\r\n\n" * 1365,
    "chained": f"{CHAINED[: CHAINED.index('Traceback', 9)]}" * 25,
}


@pytest.mark.parametrize("text", LINES.values(), ids=LINES.keys())
def test_a_text_costs_as_much_whatever_it_is_made_of(text: str) -> None:
    """A pod may say 4,096 characters at its end, and all pods of a job may end at once."""
    calls = count_calls(lambda: _told(1, text))
    assert calls < 1_500, calls


def test_a_chain_of_any_length_is_read() -> None:
    link = CHAINED[: CHAINED.index("Traceback", 9)]
    assert errortext.split(link * 2_000 + SHORT).rest == ""
