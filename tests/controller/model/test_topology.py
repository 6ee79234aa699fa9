"""Places of nodes, and the order of pods by them."""

from __future__ import annotations

import pytest

from elasticjob_operator.model import topology
from elasticjob_operator.model.observe import observe_node
from elasticjob_operator.model.topology import LABELS, sort_by_place, sort_to_leave
from operator_fixture import ROOT


def place_of(item: str) -> topology.Place:
    """Of an item like `a1x`: zone a, rack 1, node x. A dash stands for what is not known."""
    return tuple("" if part == "-" else part for part in item[:3])


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param("", "", id="none"),
        pytest.param("--x --y --z", "--x --y --z", id="no labels: as they come"),
        pytest.param("--y0 --x1 --y2 --x3", "--y0 --y2 --x1 --x3", id="those of a node together"),
        pytest.param("b1x a1y b2z a1w b1v", "b1x b1v b2z a1y a1w", id="zones, and racks in them"),
        pytest.param("a1x b1y a2z a1w", "a1x a1w a2z b1y", id="a rack of another zone is another rack"),
        pytest.param("a-x --y a-z", "a-x a-z --y", id="some are not labelled"),
    ],
)
def test_ranks_follow_the_network_and_the_first_stays_the_first(items: str, expected: str) -> None:
    found = sort_by_place(items.split(), place_of)
    assert " ".join(found) == expected
    assert sort_by_place(found, place_of) == found, "stable"


@pytest.mark.parametrize(
    ("items", "last", "expected"),
    [
        pytest.param("--x --y --z", "--x", "--z --y --x", id="no labels: the latest first"),
        pytest.param("--x --y0 --y1 --z", "--x", "--z --y1 --y0 --x", id="the smallest node first"),
        pytest.param("a1x a2y b1z b1w", "a1x", "b1w b1z a2y a1x", id="the zone of the last one goes last"),
        pytest.param("a1x a1y a2z b1w", "b1w", "a2z a1y a1x b1w", id="in a zone the smallest rack first"),
    ],
)
def test_whole_places_become_free(items: str, last: str, expected: str) -> None:
    assert " ".join(sort_to_leave(items.split(), place_of, lambda item: item == last)) == expected


def test_a_node_has_the_place_of_its_labels() -> None:
    labels = {"topology.kubernetes.io/zone": "z1", "network.topology.nvidia.com/leaf": "s7", "other": "x"}
    node = observe_node({"metadata": {"name": "n1", "labels": labels}})
    assert [part for part in node.place if part] == ["z1", "s7", "n1"]
    assert len(observe_node({"metadata": {"name": "n1"}}).place) == len(LABELS) + 1


def test_every_label_is_documented() -> None:
    page = (ROOT / "docs/health.md").read_text()
    assert [label for label in LABELS if f"`{label}`" not in page] == []
