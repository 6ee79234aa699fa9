"""What a dump of stacks says."""

from __future__ import annotations

from elasticjob.channel import stacks

DUMP = """\
Thread 0x00007f0000000001 (most recent call first):
  File "<frozen importlib._bootstrap>", line 1132 in _find_and_load_unlocked
  File "/lib/python3.11/threading.py", line 1038 in _bootstrap_inner
  File "/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "train.py", line 20 in rest
  File "train.py", line 31 in <module>
"""


def test_a_dump_is_read_once_it_is_whole() -> None:
    assert stacks.is_whole(DUMP)
    assert str(stacks.find_places(stacks.find_main_stack(DUMP))[0]) == "train.py:20 in rest"
    cuts = [DUMP[:end] for end in range(len(DUMP))]
    assert not any(map(stacks.is_whole, cuts)), "the first blocks are of other threads"
