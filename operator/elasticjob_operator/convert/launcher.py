"""Removes membership arguments from a launcher's command: `torchrun --nnodes=1:4 --max-restarts=3 train.py --nnodes x`.

Only the arguments between the launcher and the script belong to the launcher; those after the script belong to the
script.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from elasticjob_operator import numerals
from elasticjob_operator.convert.draft import ConversionError, Draft
from elasticjob_operator.convert.pods import trainer_of

# Options that are now decided elsewhere: option → where.
_MEMBERSHIP: Final = {
    "--nnodes": "spec.elasticPolicy",
    "--rdzv-backend": "spec.rendezvous.backend",
    "--rdzv-endpoint": "spec.rendezvous.endpoint",
    "--rdzv-id": "the operator",
    "--rdzv-conf": "spec.rendezvous.conf",
    "--node-rank": "the operator",
    "--master-addr": "the operator",
    "--master-port": "the operator",
    "--max-restarts": "spec.elasticPolicy.maxRestarts",
    "--nproc-per-node": "spec.nprocPerNode",
    "--standalone": "the operator",
}
_LAUNCHERS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "torchelastic.distributed.launch")
# Options without a value; all others take the next argument if they have no `=`.
_FLAGS: Final = {"--standalone", "--no-python", "--run-path", "--module", "-m", "--use-env", "--network-check"}


@dataclass(frozen=True)
class _Word:
    key: str  # command or args
    text: str


def take_arguments(draft: Draft, path: str, foreign: Collection[str] = (), *, implied: bool = False) -> None:
    """Move the membership arguments from the trainer's command to the draft.

    `foreign` are launchers that torchrun replaces. `implied`: the image's entry point is the launcher, so the first
    argument is the launcher's already.
    """
    container = trainer_of(draft)
    for key in ("command", "args"):
        if not isinstance(container.get(key) or [], list):
            raise ConversionError(f"{path}.{key}: must be a list of texts, not {container[key]!r}")
    words = [_Word(key, str(w)) for key in ("command", "args") for w in container.get(key) or []]
    kept: list[_Word] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if _is_launcher(word.text, foreign):
            kept.append(_Word(word.key, _as_torchrun(draft, word.text, foreign, path)))
            break
        if " " in word.text.strip():
            _warn_shell(draft, word.text, path)
        kept.append(word)
    else:
        if not implied:
            return
        kept, i = [], 0
    kept += _take_options(draft, words[i:], path)
    for key in ("command", "args"):
        if key in container:
            container[key] = [w.text for w in kept if w.key == key]


def _is_launcher(text: str, foreign: Collection[str]) -> bool:
    name = text.rpartition("/")[2]
    return name in _LAUNCHERS or name in foreign


def _as_torchrun(draft: Draft, text: str, foreign: Collection[str], path: str) -> str:
    folder, slash, name = text.rpartition("/")
    if name in foreign:
        draft.warn(path, f"{name} became torchrun: the operator brings the membership")
        return "torchrun"
    return f"{folder}{slash}{name}"


def _take_options(draft: Draft, words: list[_Word], path: str) -> list[_Word]:
    """The remaining options of the launcher, and everything from the script on."""
    kept: list[_Word] = []
    i = 0
    while i < len(words) and words[i].text.startswith("-"):
        text = words[i].text
        option, equals, value = text.partition("=")
        option = option.replace("_", "-")
        width = 1 if equals or option in _FLAGS or i + 1 == len(words) else 2
        if option not in _MEMBERSHIP:
            kept += words[i : i + width]
        else:
            place_option(draft, option, value if equals else words[i + width - 1].text, path)
        i += width
    return kept + words[i:]


def place_option(draft: Draft, option: str, value: str, path: str) -> None:
    """Move a torchrun argument to its field. The source's spec takes precedence."""
    number = numerals.read_count(value)
    low, high = (numerals.read_count(part) for part in (value if ":" in value else f"{value}:{value}").split(":", 1))
    if option == "--nproc-per-node" and (number is not None or value in ("auto", "cpu", "gpu")):
        draft.spec.setdefault("nprocPerNode", value if number is None else number)
    elif option == "--max-restarts" and number is not None:
        draft.elastic.setdefault("maxRestarts", number)
    elif option == "--nnodes" and low is not None and high is not None:
        draft.elastic.setdefault("minReplicas", low)
        draft.elastic.setdefault("maxReplicas", high)
    else:
        text = option if value == option else f"{option} {value}"
        draft.warn(path, f"{text} was dropped: {_MEMBERSHIP[option]} decides it")


def _warn_shell(draft: Draft, line: str, path: str) -> None:
    """Leave a shell line unchanged, with a warning: rewriting it could break it."""
    plain = line.replace("_", "-")
    for option, where in _MEMBERSHIP.items():
        if f"{option}=" in plain or f"{option} " in plain:
            draft.warn(path, f"{option} stands in a shell line, left as it is: take it out, {where} decides it")
