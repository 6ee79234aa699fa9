"""Which replays of CUDA graphs are collectives of the world."""

from __future__ import annotations

from worker.gang_helper import PROGRAMS, run_gang


def test_a_graph_counts_and_belongs_to_its_world_if_other_ranks_take_part_in_it() -> None:
    for rank in run_gang(PROGRAMS / "graphs_program.py", 2):
        assert [rank.results[name] for name in ("nothing", "collective", "message")] == [0, 2, 2]
        later = [rank.results[f"{name} later"] for name in ("nothing", "collective", "message")]
        assert later == ["replayed", "refused", "refused"]
