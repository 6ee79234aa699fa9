"""What workers write reaches the log as it is, and each line is looked at for the rules of the job."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticjob.agent import output
from elasticjob.agent.output import Output
from elasticjob_operator.api import digest_patterns

pytestmark = pytest.mark.timeout(60)

RULES = json.dumps(
    [{"rule": "Ecc", "pattern": "(?i)ecc error"}, {"rule": "Loss", "pattern": "loss=([0-9.]+|nan)", "metric": "loss"}]
)


class Heard:
    def __init__(self, rules: str = RULES) -> None:
        self.lines: list[tuple[str, int, str]] = []
        self.numbers: list[tuple[str, int, float]] = []
        self.output = Output(
            output.read_rules(rules),
            lambda rule, rank, line: self.lines.append((rule.name, rank, line)),
            lambda metric, rank, value: self.numbers.append((metric, rank, value)),
        )

    def run(self, program: str, folder: Path, rank: int = 0) -> tuple[int, bytes, bytes]:
        """Run a program whose output and errors go to files; its exit code, and what the files have."""
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            with self.output.tap({"LOCAL_RANK": str(rank)}, out, err) as (stdout, stderr):
                started = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=stdout, stderr=stderr)
            code = started.wait()
        self.output.close()
        return code, (folder / "out").read_bytes(), (folder / "err").read_bytes()


WRITES = r"""
import sys, os
for loss in ("2.5", "1.5", "nan"):
    print(f"loss={loss}")
os.write(1, b"\xff\xfe half a character\r\n" + b"x" * 100_000 + b"\n")
print("GPU 3: ECC Error", file=sys.stderr)
sys.stderr.write("no newline, loss=4.0")
sys.exit(3)
"""


def test_all_that_is_written_is_passed_on_and_looked_at(tmp_path: Path) -> None:
    heard = Heard()
    code, out, err = heard.run(WRITES, tmp_path, rank=2)
    assert code == 3
    assert out == b"loss=2.5\nloss=1.5\nloss=nan\n\xff\xfe half a character\r\n" + b"x" * 100_000 + b"\n"
    assert err == b"GPU 3: ECC Error\nno newline, loss=4.0"
    assert heard.lines == [("Ecc", 2, "GPU 3: ECC Error")]
    assert [str(value) for _, _, value in sorted(heard.numbers, key=str)] == ["1.5", "2.5", "4.0", "nan"]
    assert heard.output._streams == {}, "nothing is left open"


BARS = r"""
import sys
for step, loss in enumerate(("2.5", "1.5", "nan")):
    sys.stderr.write(f"\r{step:4}/3 [####    ] loss={loss}, {'.' * 2000}")
sys.stderr.write("\r\x1b[K")
print("\x1b[1mGPU 3\x1b(B\x1b[m: ECC \x1b7\x1b[31merror\x1b8\x1b[0m")  # as of `tput sgr0`, `sc` and `rc`
print("loss=\x1b[1;36m4.0\x1b[0m")
print("\x1b]8;;http://a/b\x1b\\loss=5.0\x1b]8;;\x07 \x1b")
"""


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param({"rule": "New", "pattern": "(?<name>a)"}, id="an expression of a later version"),
        pytest.param({"rule": "New", "shape": "a"}, id="without an expression"),
        pytest.param({"rule": "New", "pattern": "a", "stream": "stderr"}, id="a field that may restrict it"),
        pytest.param("New", id="another form"),
    ],
)
def test_a_rule_that_is_not_understood_takes_no_other_with_it(
    strange: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the pod names it, and the operator hears that not all are looked for."""
    known = json.loads(RULES)
    text = json.dumps([known[0], strange, known[1]])
    assert [rule.name for rule in output.read_rules(text)] == ["Ecc", "Loss"]
    assert "New" in caplog.text
    assert output.digest(text) == output.digest(RULES) == digest_patterns(RULES)
    assert output.digest(text) != digest_patterns(text)
    assert output.digest(json.dumps([strange])) == ""


def test_progress_bars_and_colours_hide_nothing(tmp_path: Path) -> None:
    """A bar is written over itself, with no new line until its end; a colour may be in the middle of a word."""
    heard = Heard()
    code, _, err = heard.run(BARS, tmp_path)
    assert code == 0
    assert err.count(b"\r") == 4, "it is passed on as it is"
    assert heard.lines == [("Ecc", 0, "GPU 3: ECC error")]
    assert sorted(str(value) for _, _, value in heard.numbers) == ["1.5", "2.5", "4.0", "5.0", "nan"]


def test_without_a_rule_workers_write_where_they_would() -> None:
    with Heard("").output.tap({}, None, 5) as files:
        assert files == (None, 5)


@pytest.mark.parametrize("rules", ["{", "not json", "[1]", '[{"rule": "A"}]', '[{"rule": "A", "pattern": "("}]', "{}"])
def test_rules_that_are_not_understood_are_told_and_nothing_is_looked_for(
    rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "elasticjob"):
        assert output.read_rules(rules) == []
        assert output.digest(rules) == ""
    assert caplog.text.count("are not understood") == 1


def test_a_mistake_in_the_looking_does_not_stop_the_passing_on(tmp_path: Path) -> None:
    heard = Heard()
    heard.output._on_line = lambda rule, rank, line: 1 / 0  # type: ignore[assignment]
    _, out, _ = heard.run("for _ in range(10_000): print('an ECC error in a line')", tmp_path)
    assert out.count(b"\n") == 10_000


def test_more_than_can_be_looked_at_is_passed_on_all_the_same(tmp_path: Path) -> None:
    """An expression that takes its time for each line, and a rank that writes 20,000 of them."""
    slow = json.dumps([{"rule": "Slow", "pattern": "(.*a){20}z"}])
    heard = Heard(slow)
    program = "import sys\nfor i in range(20_000): sys.stdout.write('ab' * 40 + str(i) + 'z\\n')"
    _, out, _ = heard.run(program, tmp_path)
    assert out.count(b"\n") == 20_000
    assert heard.output._budget.left <= 1.0


FLOOD = r"""
import os
text = b"x" * 6_000_000 + b"\n" + b"loss=1.0 \0 \x1b[31m \xff\xfe \r\n" * 200_000
for _ in range(10):
    for at in range(0, len(text), 1 << 16):
        os.write(1, text[at : at + (1 << 16)])
print("GPU 3: ECC Error")
"""


def test_a_flood_of_anything_is_passed_on_to_the_last_byte(tmp_path: Path) -> None:
    """100 MB: lines of 6 MB, NULs, colours, bytes that are no text."""
    heard = Heard()
    code, out, _ = heard.run(FLOOD, tmp_path)
    text = b"x" * 6_000_000 + b"\n" + b"loss=1.0 \0 \x1b[31m \xff\xfe \r\n" * 200_000
    assert code == 0
    assert out == text * 10 + b"GPU 3: ECC Error\n"
    assert len(out) > 100_000_000
    assert heard.output._streams == {}


def test_a_log_that_nobody_reads_does_not_end_the_worker(tmp_path: Path) -> None:
    heard = Heard()
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as gone, heard.output.tap({}, gone, gone) as (out, err):
        started = subprocess.Popen([sys.executable, "-u", "-c", WRITES], stdout=out, stderr=err)
    assert started.wait() == 3
    heard.output.close()
    assert heard.lines
