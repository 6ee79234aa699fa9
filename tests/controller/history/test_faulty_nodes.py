"""Nodes with faults are remembered across jobs, and forgotten with time."""

from __future__ import annotations

import pytest

from controller.builders import NOW
from elasticjob_operator import api
from elasticjob_operator.history import faulty_nodes
from elasticjob_operator.times import format_time

HOUR = 3600.0


def fault(node: str, count: int = 1, hours: float = 0.0) -> api.NodeFault:
    return api.NodeFault(node=node, count=count, last_time=format_time(NOW - hours * HOUR))


@pytest.mark.parametrize(
    ("jobs", "avoided"),
    [
        pytest.param([[]], (), id="none"),
        pytest.param([[fault("a")]], (), id="one may be chance"),
        pytest.param([[fault("a", 2)]], ("a",), id="two in one job"),
        pytest.param([[fault("a")], [fault("a"), fault("b")]], ("a",), id="one in each of two jobs"),
        pytest.param([[fault("a", 2, 5)]], ("a",), id="five hours ago"),
        pytest.param([[fault("a", 2, 7)]], (), id="seven hours ago"),
        pytest.param([[fault("a", 2, 11)], [fault("a", 2, 11)]], ("a",), id="in two jobs, eleven hours ago"),
        pytest.param([[fault("a", 100, 7)]], (), id="one job alone does not discredit a node for long"),
        pytest.param([[fault("a", 2, -1)]], ("a",), id="a clock that was ahead"),
        pytest.param([[fault("a", 0), fault("a", -5)]], (), id="not written by an operator"),
        pytest.param([[fault("b", 2)], [fault("a", 2)]], ("a", "b"), id="two nodes"),
    ],
)
def test_which_nodes_new_pods_avoid(jobs: list[list[api.NodeFault]], avoided: tuple[str, ...]) -> None:
    told = [(f"ml/job-{number}", faults) for number, faults in enumerate(jobs)]
    assert faulty_nodes.names_of(faulty_nodes.remember(told, NOW)) == avoided


def test_the_worst_node_comes_first_with_its_jobs() -> None:
    told = [("ml/b", [fault("a"), fault("b", 2)]), ("ml/a", [fault("b", 3, 6)])]
    first, second = faulty_nodes.remember(told, NOW)
    assert (first.node, first.score, first.faults, first.jobs) == ("b", 3.0, 5, ("ml/a", "ml/b"))
    assert (second.node, second.is_faulty, second.last) == ("a", False, NOW)


def test_what_is_old_is_left_out_and_the_list_is_bounded() -> None:
    assert faulty_nodes.remember([("ml/a", [fault("a", 2, 48)])], NOW) == ()
    many = [("ml/a", [fault(f"n{number}") for number in range(500)])]
    assert len(faulty_nodes.remember(many, NOW)) == 50


# Whose word counts, where more nodes are discredited than the lists have places.

PLOT = [f"forged{number:03d}" for number in range(200)]
REAL = [f"real{number}" for number in range(30)]
Told = dict[str, list[str]]  # by namespace: the nodes; how often a namespace says it does not matter


def tell(told: Told, loud: frozenset[str] = frozenset()) -> list[tuple[str, list[api.NodeFault]]]:
    """The jobs of these namespaces. Of a loud one, ten say the same, and each twice; of others, one says it once."""
    return [
        (f"{namespace}/{turn}-{start}", [fault(node, 1 + (namespace in loud)) for node in nodes[start : start + 20]])
        for namespace, nodes in told.items()
        for turn in range(10 if namespace in loud else 1)
        for start in range(0, len(nodes), 20)
    ]


@pytest.mark.parametrize(
    ("told", "agreed"),
    [
        pytest.param({"ml": REAL, "lab": REAL}, REAL, id="two that are honest"),
        pytest.param({"ml": REAL, "lab": REAL, "evil": PLOT}, REAL, id="nobody agrees with a liar"),
        pytest.param({"ml": REAL[:25], "lab": REAL[:25], "evil": PLOT, "evil-too": PLOT}, REAL[:25], id="two liars"),
        pytest.param({"ml": REAL[:9], "lab": REAL[:9], "evil": REAL + PLOT, "evil-too": PLOT}, REAL[:9], id="joining"),
        pytest.param({"ml": REAL[:3], "lab": REAL[:3], **{f"e{i}": PLOT for i in range(9)}}, REAL[:3], id="nine liars"),
    ],
)
def test_no_namespaces_crowd_out_what_others_agree_on(told: Told, agreed: list[str]) -> None:
    liars = frozenset(namespace for namespace in told if namespace.startswith("e"))
    found = faulty_nodes.find_suspects(tell(told, liars), NOW, lambda node, at: True)
    assert set(agreed) <= set(found.agreed)
    assert len(found.agreed) <= faulty_nodes.MOST_NODES and list(found.agreed) == sorted(found.agreed)


def test_what_pods_of_a_namespace_met_is_avoided_there_whatever_others_say() -> None:
    told: Told = {"ml": REAL, "evil": [*reversed(PLOT), *REAL], "evil-too": PLOT}
    jobs = [*tell(told, frozenset({"evil", "evil-too"})), *tell({"ml": REAL})]  # "ml" says it twice
    assert list(faulty_nodes.find_suspects(jobs, NOW, lambda node, at: True).by_namespace["ml"]) == sorted(REAL)


def test_the_list_of_all_jobs_has_the_worst_nodes_of_each_namespace() -> None:
    jobs = tell({"evil": PLOT, "evil-too": PLOT[::-1], "ml": REAL[:10]}, frozenset({"evil", "evil-too"}))
    found = faulty_nodes.remember(jobs, NOW)
    assert {record.node for record in found} >= set(REAL[:10])
    assert len(found) == faulty_nodes.MOST_NODES
    assert [record.score for record in found] == sorted((record.score for record in found), reverse=True)


@pytest.mark.parametrize(
    ("before", "count", "after"),
    [
        pytest.param([], 1, [("a", 1)], id="the first one"),
        pytest.param([], faulty_nodes.PROOF, [("a", 2)], id="one that leaves no doubt"),
        pytest.param([fault("a")], 1, [("a", 2)], id="a second one"),
        pytest.param([fault("a", 1, 5)], 1, [("a", 2)], id="a second one on the same day"),
        pytest.param([fault("a", 1, 7)], 1, [("a", 1)], id="an old one has faded"),
        pytest.param([fault("b", 2, 5)], 1, [("b", 2), ("a", 1)], id="another node is not forgotten meanwhile"),
        pytest.param([fault("b", 1, 48)], 1, [("a", 1)], id="what is old is dropped"),
        pytest.param(
            [fault(f"n{i}") for i in range(20)], 1, [*((f"n{i}", 1) for i in range(1, 20)), ("a", 1)], id="20"
        ),
    ],
)
def test_a_fault_is_noted(before: list[api.NodeFault], count: int, after: list[tuple[str, int]]) -> None:
    found = faulty_nodes.note(before, "a", NOW, count)
    assert [(one.node, one.count) for one in found] == after
    assert found[-1].last_time == format_time(NOW)


def test_a_fault_on_another_node_forgets_none() -> None:
    """A job that loses a pod five hours later still avoids the node that failed it twice."""
    later = faulty_nodes.note([fault("a", 2, 5)], "b", NOW)
    assert faulty_nodes.names_of(faulty_nodes.remember([("ml/job", later)], NOW)) == ("a",)


OWN = {"key": "elasticjob.dev/faulty", "effect": "PreferNoSchedule"}
GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("nodes", "faulty", "changes"),
    [
        ({"a": False, "b": False}, ["b"], {"b": True}),
        ({"a": True, "b": True}, ["b"], {"a": False}),
        ({"a": False}, ["gone"], {}),
        ({}, [], {}),
    ],
)
def test_faulty_nodes_have_the_taint_and_others_lose_it(
    nodes: dict[str, bool], faulty: list[str], changes: dict[str, bool]
) -> None:
    assert faulty_nodes.choose_marks(nodes, faulty) == changes


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ([], True, [OWN]),
        ([GPU], True, [GPU, OWN]),
        ([GPU, {**OWN, "effect": "NoSchedule"}], True, [GPU, OWN]),
        ([OWN, GPU], False, [GPU]),
        ([], False, []),
    ],
)
def test_the_taints_of_others_stay(before: list[dict[str, str]], wanted: bool, after: list[dict[str, str]]) -> None:
    assert faulty_nodes.with_taint(before, wanted) == after
