"""Errors of the program that recur: at every start, or whenever it comes to the same place. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from elasticjob_operator.failures import classify
from elasticjob_operator.failures.classify import Blame, Failure
from elasticjob_operator.model import errortext

# Errors in the program's source or command, which recur at every start: names, syntax, a missing script, unknown
# arguments.
_MISTAKES = re.compile(
    r"(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|NameError|UnboundLocalError): "
    r"|(AttributeError|TypeError): (?!.*NoneType)"
    r"|.*: can't open file '.*': \[Errno 2\]"
    r"|.*: error: (unrecognized arguments|the following arguments are required|argument )"
)
# What argparse and click say before they exit with 2.
_USAGE = re.compile(r"(\S+: error: \S|Error: (No such |Got unexpected |Missing |Invalid value|Option ))")
_USAGE_CODE = 2
_LONGEST = 1024  # characters of a line
_FRAME = re.compile(r'^ *File "([^"\n]{1,512})", line (\d{1,9})', re.MULTILINE)
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python\d\.\d+)/|^<")
# What is outside of the program, and may be mended there: an older checkpoint would only lose steps.
_MENDS = re.compile(
    r"OS|IO|EOF|SSL|HTTP|File|Pipe|Permission|Time|Connect|Network|Retry|Client|Memory|Dist|gaierror"
    r"|CollectiveFailed|WorldLost"
)


def mistake_of(failures: Sequence[Failure]) -> str:
    """The program error that all primary failures have in common; "" if there is none."""
    told = {_last_mistake(f) for f in failures if f.blame is Blame.USER and not classify.is_secondary(f)}
    return told.pop() if len(told) == 1 else ""


def _last_mistake(failure: Failure) -> str:
    for text in (failure.traceback, failure.message, failure.log_tail):
        last = text.strip().rpartition("\n")[2].strip()[:_LONGEST]
        if _MISTAKES.match(last) or (failure.exit_code == _USAGE_CODE and _USAGE.match(last)):
            return last[:256]
    return ""


def find_place(failure: Failure) -> str:
    """The program's error and where it was raised, as in `ValueError at train.py:88`; "" if it may mend itself.

    Of what the runtime refuses, its name alone: ranks are refused at different places for one cause.
    """
    error = errortext.exception_of(failure.traceback)
    if failure.blame is Blame.USER and (refused := errortext.REFUSAL.match(error)):
        return refused[0]
    kind = error.partition(":")[0].rpartition(".")[2][:128]
    frames = _FRAME.findall(failure.traceback)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    if not kind.isidentifier() or not own or failure.blame is not Blame.USER or _MENDS.search(kind):
        return ""
    return f"{kind} at {own[-1][0].rpartition('/')[2][-128:]}:{own[-1][1]}"


def is_refusal(place: str) -> bool:
    """Whether this is what the runtime refuses a script for: it does so again, however far the script has trained."""
    return errortext.REFUSAL.fullmatch(place) is not None
