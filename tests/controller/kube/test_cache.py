"""The objects that the cache assigns to a job, and the ones that it forgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.counted_work import count_work
from elasticjob_operator.api import bounds, names
from elasticjob_operator.kube import cache as cache_module
from elasticjob_operator.kube.cache import Cache, UnownedObject
from elasticjob_operator.model import ownership

KEY = ("team", "digits")
OWNER = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": "job-1", "controller": True}


def raw_job(uid: str = "job-1", version: str = "10") -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "worker", "image": "train:1"}]}}
    metadata = {"name": "digits", "namespace": "team", "uid": uid, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"replicas": 1, "template": template}}


def raw_pod(index: int = 0, *, uid: str = "", job_uid: str = "job-1", **metadata: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": names.pod_name("digits", index),
        "namespace": "team",
        "uid": uid or f"u{index}",
        "resourceVersion": "20",
        "labels": {
            names.LABEL_JOB: "digits",
            names.LABEL_JOB_UID: job_uid,
            names.LABEL_INDEX: str(index),
            names.LABEL_APP: names.LABEL_APP_VALUE,
        },
        "ownerReferences": [{**OWNER, "uid": job_uid}],
    }
    spec = {"nodeName": "node0", "containers": [{"name": "worker"}]}
    return {"metadata": {**base, **metadata}, "spec": spec, "status": {"phase": "Running"}}


def raw_child(name: str = "digits-workers", *, version: str = "30", **metadata: Any) -> dict[str, Any]:
    annotations = {names.ANNOTATION_DIGEST: "digest"}
    base: dict[str, Any] = {"name": name, "namespace": "team", "uid": "child-1", "resourceVersion": version}
    return {"metadata": {**base, "annotations": annotations, "ownerReferences": [OWNER], **metadata}}


class Watched:
    """A cache, with what it said."""

    def __init__(self) -> None:
        self.woken: list[tuple[str, str]] = []
        self.unowned: list[UnownedObject] = []
        self.cache = Cache(self.woken.append, self.unowned.append)

    def digests(self) -> dict[str, str]:
        return {name: digest for _, name, digest in self.cache.children(self.cache.jobs[KEY][0])}


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    made.cache.put_job(raw_job())
    return made


STOLEN = [
    pytest.param({"ownerReferences": []}, "no ElasticJob controls it", id="no owner"),
    pytest.param(
        {"ownerReferences": [{**OWNER, "controller": False}]}, "no ElasticJob controls it", id="not controller"
    ),
    pytest.param({"ownerReferences": [{**OWNER, "kind": "Job"}]}, "no ElasticJob controls it", id="another kind"),
    pytest.param({"ownerReferences": [{**OWNER, "apiVersion": "x.dev/v1"}]}, "no ElasticJob", id="another group"),
    pytest.param({"ownerReferences": [{**OWNER, "uid": "job-9"}]}, "its labels do not name", id="another UID"),
    pytest.param({"ownerReferences": [{**OWNER, "name": "other"}]}, "its labels do not name", id="another job"),
    pytest.param({"name": "my-own-debug-pod"}, "its name is not the one", id="a foreign name"),
    pytest.param({"name": "digits-worker-1"}, "its name is not the one", id="the name of another index"),
]


@pytest.mark.parametrize(("metadata", "why"), STOLEN)
def test_a_pod_with_stolen_labels_is_no_worker(watched: Watched, metadata: dict[str, Any], why: str) -> None:
    raw = raw_pod(**metadata)
    for version in ("20", "21"):
        raw["metadata"]["resourceVersion"] = version
        watched.cache.apply_pod("MODIFIED", raw)
    assert watched.cache.pods(KEY) == ()
    assert watched.cache.find_pod("team", raw["metadata"]["name"], "u0") is None
    (told,) = watched.unowned
    assert (told.kind, told.namespace, told.name, told.job) == ("Pod", "team", raw["metadata"]["name"], "digits")
    assert told.why.startswith(why)


def test_a_worker_is_found_while_its_job_is_the_one_that_exists(watched: Watched) -> None:
    cache = watched.cache
    cache.put_pod(raw_pod())
    assert ownership.why_no_worker(raw_pod()["metadata"]) == ""
    assert cache.find_pod("team", "digits-worker-0", "u0") == "digits"
    assert cache.find_pod("other", "digits-worker-0", "u0") is None
    cache.drop_job(KEY, "job-1")
    assert cache.find_pod("team", "digits-worker-0", "u0") is None
    cache.put_job(raw_job("job-2", "40"))
    assert cache.find_pod("team", "digits-worker-0", "u0") is None, "a namesake's pod"
    assert [p.uid for p in cache.pods(KEY)] == ["u0"], "its name is taken until it is gone"
    assert watched.unowned == []


def test_pods_that_look_like_workers_of_a_job_are_counted_up_to_what_a_job_may_have(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may create pods can write all papers of a worker. A job that is renewed has twice its pods."""
    monkeypatch.setattr(cache_module, "LEAST_PODS", 40)
    watched.cache = cache = Cache(watched.woken.append, watched.unowned.append, bounds.Limits(replicas=20))
    cache.put_job(raw_job())
    for index in range(60):
        cache.put_pod(raw_pod(index))
    assert len(cache.pods(KEY)) == cache.count_pods()["team"] == 40
    assert [(one.name, one.why) for one in watched.unowned[:1]] == [("digits-worker-40", "its job has 40 pods already")]
    assert len(watched.unowned) == 20
    cache.put_pod(raw_pod(3, resourceVersion="21"))
    assert len(cache.pods(KEY)) == 40, "those that it has are still followed"
    cache.drop_pod("u3", "22")
    cache.put_pod(raw_pod(50, resourceVersion="23"))
    assert cache.find_pod("team", "digits-worker-50", "u50") == "digits", "there is room again"


def test_all_pods_of_a_job_that_runs_are_known_when_the_largest_job_becomes_smaller(watched: Watched) -> None:
    """It shrinks to what is allowed now, and nobody else would delete the others."""
    watched.cache = cache = Cache(watched.woken.append, watched.unowned.append, bounds.Limits(replicas=2))
    cache.put_job(raw_job())
    for index in range(60):
        cache.put_pod(raw_pod(index))
    assert len(cache.pods(KEY)) == 60
    assert not watched.unowned


def test_pods_with_the_labels_of_a_job_do_not_wake_it_and_cost_little(watched: Watched) -> None:
    strangers = [raw_pod(index, ownerReferences=[]) for index in range(5_000)]
    watched.woken.clear()

    def put() -> None:
        for one in strangers:
            watched.cache.put_pod(one)

    assert count_work(put) < 5_000 * 500
    assert not watched.woken
    assert not watched.cache.pods(KEY)


def test_a_worker_that_loses_its_owner_is_let_go(watched: Watched) -> None:
    watched.cache.put_pod(raw_pod())
    watched.cache.put_pod(raw_pod(ownerReferences=[], resourceVersion="21"))
    assert watched.cache.pods(KEY) == ()
    assert len(watched.unowned) == 1


def test_a_pod_whose_labels_were_taken_away_is_forgotten_when_it_goes(watched: Watched) -> None:
    watched.cache.put_pod(raw_pod())
    watched.cache.apply_pod("DELETED", raw_pod(labels={}))
    assert watched.cache.pods(KEY) == ()


@pytest.mark.parametrize(
    ("listed_at", "left"),
    [
        pytest.param("30", [], id="deleted while nobody watched, and no other is left"),
        pytest.param("19", ["u0"], id="made after the list was taken"),
    ],
)
def test_pods_that_a_list_lacks(watched: Watched, listed_at: str, left: list[str]) -> None:
    watched.cache.put_pod(raw_pod())
    asyncio.run(watched.cache.replace_pods([], listed_at))
    assert [pod.uid for pod in watched.cache.pods(KEY)] == left


@pytest.mark.parametrize("told", ["event", "list"])
def test_a_pod_that_has_its_label_again_is_seen_again(watched: Watched, told: str) -> None:
    """Without the label it is not watched: the watch tells that it is gone, at the version of the change."""
    cache = watched.cache
    for pod in (raw_pod(), raw_pod(7, ownerReferences=[])):
        cache.put_pod(pod)
    if told == "event":
        for pod in (raw_pod(resourceVersion="22"), raw_pod(7, ownerReferences=[], resourceVersion="22")):
            cache.apply_pod("DELETED", pod)
    else:
        asyncio.run(cache.replace_pods([], "22"))
    for version, seen in (("22", 0), ("23", 1)):
        cache.put_pod(raw_pod(resourceVersion=version))
        cache.put_pod(raw_pod(7, ownerReferences=[], resourceVersion=version))
        assert (len(cache.pods(KEY)), len(cache.strangers())) == (seen, seen), version


def test_a_pod_that_was_asked_for_and_is_gone_does_not_come_back(watched: Watched) -> None:
    watched.cache.put_pod(raw_pod())
    watched.cache.drop_pod("u0")
    watched.cache.put_pod(raw_pod(resourceVersion="99"))
    assert watched.cache.pods(KEY) == ()


@pytest.mark.parametrize(
    ("uid", "version", "is_there"),
    [
        pytest.param("job-1", "41", False, id="an answer that was under way"),
        pytest.param("job-1", "42", False, id="the deletion again"),
        pytest.param("job-1", "43", True, id="it is there after all"),
        pytest.param("job-2", "41", True, id="another one of its name"),
    ],
)
def test_a_job_whose_deletion_was_told_does_not_come_back(
    watched: Watched, uid: str, version: str, is_there: bool
) -> None:
    """Whoever makes and deletes jobs fast would fill the memory with those that nobody tells the end of again."""
    watched.cache.apply_job("DELETED", raw_job(version="42"))
    watched.cache.put_job(raw_job(uid, version))
    assert (KEY in watched.cache.jobs) == is_there


@pytest.mark.parametrize(
    ("version", "is_there"),
    [
        pytest.param("41", False, id="an answer that was under way"),
        pytest.param("42", True, id="it has only lost the label, without which it is not watched"),
        pytest.param("43", True, id="it has it again"),
    ],
)
def test_a_policy_whose_deletion_was_told_does_not_come_back(watched: Watched, version: str, is_there: bool) -> None:
    """The operator would not make it anew, and whoever waits for it would train without."""
    watched.cache.put_child("NetworkPolicy", raw_child(version="40"))
    watched.cache.apply_child("NetworkPolicy", "DELETED", raw_child(version="42"))
    watched.cache.put_child("NetworkPolicy", raw_child(version=version), is_sound=True)
    assert bool(watched.digests()) == is_there


@pytest.mark.parametrize(("version", "is_there"), [("41", False), ("43", True)])
def test_a_policy_that_a_list_lacks_does_not_come_back(watched: Watched, version: str, is_there: bool) -> None:
    """It was deleted while nobody watched, so no event tells it; the answer to a write was under way."""
    watched.cache.put_child("NetworkPolicy", raw_child(version="40"))
    asyncio.run(watched.cache.replace_children("NetworkPolicy", [], "42"))
    watched.cache.put_child("NetworkPolicy", raw_child(version=version), is_sound=True)
    assert bool(watched.digests()) == is_there


def test_nothing_is_kept_of_pods_that_came_and_went(watched: Watched) -> None:
    cache = watched.cache
    node = {"metadata": {"name": "node0"}, "spec": {}, "status": {}}
    for number in range(100):
        pod = raw_pod(uid=f"u{number}")
        cache.put_pod({**pod, "spec": {**pod["spec"], "nodeName": ""}})
        cache.put_pod({**pod, "metadata": {**pod["metadata"], "resourceVersion": "21"}})
        cache.drop_pod(f"u{number}")
    watched.woken.clear()
    cache.put_node(node)
    assert watched.woken == [], "no job has a pod on this node any more"
    cache.put_pod(raw_pod(uid="last"))
    watched.woken.clear()
    cache.apply_node("DELETED", node)
    assert watched.woken == [KEY]


class TestChildren:
    def test_a_child_that_nobody_touched(self, watched: Watched) -> None:
        watched.cache.put_child("NetworkPolicy", raw_child(generation=1))
        watched.cache.put_child("ConfigMap", raw_child("digits-elasticjob-ca"))
        assert watched.digests() == {"digits-workers": "digest", "digits-elasticjob-ca": "digest"}

    @pytest.mark.parametrize("generations", [(1, 2), (None, None)], ids=["with a generation", "without"])
    def test_somebody_changed_it(self, watched: Watched, generations: tuple[int | None, int | None]) -> None:
        before, after = generations
        watched.cache.put_child("Service", raw_child(generation=before), is_sound=True)
        watched.woken.clear()
        watched.cache.apply_child("Service", "MODIFIED", raw_child(generation=after, version="31"))
        assert watched.digests() == {"digits-workers": ""}
        assert watched.woken == [KEY]
        watched.cache.put_child("Service", raw_child(generation=after, version="31"), is_sound=True)
        assert watched.digests() == {"digits-workers": "digest"}

    def test_its_status_may_change(self, watched: Watched) -> None:
        watched.cache.put_child("PodDisruptionBudget", raw_child(generation=1))
        watched.cache.put_child("PodDisruptionBudget", raw_child(generation=1, version="31"))
        assert watched.digests() == {"digits-workers": "digest"}

    def test_an_older_state_is_no_change(self, watched: Watched) -> None:
        watched.cache.put_child("NetworkPolicy", raw_child(generation=2, version="31"), is_sound=True)
        watched.cache.put_child("NetworkPolicy", raw_child(generation=1, version="30"))
        assert watched.digests() == {"digits-workers": "digest"}

    def test_one_that_was_changed_before_we_looked(self, watched: Watched) -> None:
        watched.cache.put_child("NetworkPolicy", raw_child(generation=2))
        assert watched.digests() == {"digits-workers": ""}

    def test_one_that_was_replaced_is_not_the_one_that_we_made(self, watched: Watched) -> None:
        name = "digits-elasticjob-ca"
        watched.cache.put_child("ConfigMap", raw_child(name), is_sound=True)
        watched.cache.put_child("ConfigMap", raw_child(name, uid="child-2", version="31"))
        assert watched.digests() == {name: ""}
        assert watched.cache.child_uid(watched.cache.jobs[KEY][0], "ConfigMap", name) == "child-2"

    def test_a_stranger(self, watched: Watched) -> None:
        labels = {names.LABEL_JOB: "digits", names.LABEL_APP: names.LABEL_APP_VALUE}
        for _ in range(2):
            watched.cache.put_child("ConfigMap", raw_child(labels=labels, ownerReferences=[]))
        assert watched.digests() == {}
        assert [(s.kind, s.name, s.job) for s in watched.unowned] == [("ConfigMap", "digits-workers", "digits")]

    def test_what_claims_to_be_one_of_thousands(self, watched: Watched) -> None:
        """A tenant may write objects that a job controls, as many as fit: they cost its passes nothing."""
        watched.cache.put_child("ConfigMap", raw_child("digits-elasticjob-ca"))
        watched.woken.clear()
        for number in range(2_000):
            watched.cache.put_child("ConfigMap", raw_child(f"digits-{number}", uid=f"c{number}"))
            watched.cache.put_child("NetworkPolicy", raw_child(f"digits-{number}", uid=f"n{number}"))
        assert watched.digests() == {"digits-elasticjob-ca": "digest"}
        assert watched.woken == []
        assert watched.unowned[0].why == "its name is not the one that the operator gives to a ConfigMap"
        watched.cache.apply_child("ConfigMap", "DELETED", raw_child("digits-1", uid="c1"))
        assert watched.woken == []

    def test_one_whose_owner_cannot_be_read_any_more(self, watched: Watched) -> None:
        """Its author has written too much into it, or taken the owner away: it may be anything by now."""
        watched.cache.put_child("NetworkPolicy", raw_child())
        watched.woken.clear()
        known = raw_child(version="31")["metadata"]
        identity = {name: known[name] for name in ("name", "namespace", "uid", "resourceVersion")}
        watched.cache.apply_child("NetworkPolicy", "MODIFIED", {"metadata": identity})
        assert watched.digests() == {}
        assert watched.woken == [KEY]

    def test_those_of_jobs_that_nobody_made(self, watched: Watched) -> None:
        """A tenant may name any owner, and write as many objects as fit: no replica keeps them."""

        def write(number: int) -> None:
            owner = {**OWNER, "name": f"ghost-{number}", "uid": f"g{number}"}
            raw = raw_child(f"ghost-{number}-workers", uid=f"c{number}", ownerReferences=[owner])
            watched.cache.put_child("NetworkPolicy", raw)

        def delete() -> None:
            nobodys = {"metadata": {"name": "x", "namespace": "team", "uid": "x"}}
            watched.cache.apply_child("NetworkPolicy", "DELETED", nobodys)

        watched.cache.put_child("NetworkPolicy", raw_child())
        alone = count_work(delete)
        for number in range(500):
            write(number)
        assert count_work(delete) < 2 * alone
        asyncio.run(watched.cache.know_jobs())
        watched.woken.clear()
        for number in range(1000):
            write(number)
        assert [*watched.cache._children] == [KEY]
        assert watched.woken == []
        assert watched.digests() == {"digits-workers": "digest"}

    def test_one_that_could_not_be_read_when_it_was_deleted(self, watched: Watched) -> None:
        watched.cache.put_child("NetworkPolicy", raw_child())
        assert watched.digests() != {}
        known = raw_child()["metadata"]
        identity = {name: known[name] for name in ("name", "namespace", "uid")}
        watched.cache.apply_child("NetworkPolicy", "DELETED", {"metadata": {**identity, "uid": "another"}})
        assert watched.digests() != {}
        watched.cache.apply_child("NetworkPolicy", "DELETED", {"metadata": identity})
        assert watched.digests() == {}


def test_what_a_deleted_job_has_left(watched: Watched) -> None:
    cache = watched.cache
    cache.put_pod(raw_pod(0))
    cache.put_pod(raw_pod(1, deletionTimestamp="2026-01-01T00:00:30Z"))
    cache.put_pod(raw_pod(2, job_uid="job-2"))
    cache.put_pod(raw_pod(3, ownerReferences=[OWNER, {**OWNER, "uid": "other", "controller": False}]))
    cache.put_child("NetworkPolicy", raw_child())
    cache.put_child("Service", raw_child(uid="strange", ownerReferences=[{**OWNER, "uid": "job-2"}]))
    assert cache.left_over(KEY) == (), "the job is there"
    watched.woken.clear()
    cache.apply_job("DELETED", raw_job())
    assert watched.woken
    assert [(one.kind, one.uid, one.version, one.is_going) for one in cache.left_over(KEY)] == [
        ("Pod", "u0", "20", False),
        ("Pod", "u1", "20", True),
        ("NetworkPolicy", "child-1", "30", False),
    ]
    cache.put_job(raw_job("job-2", "40"))
    assert {one.uid for one in cache.left_over(KEY)} == {"u0", "u1", "child-1"}, "another job has its name now"
    cache.leave(KEY)
    assert cache.left_over(KEY) == ()


def test_a_job_that_is_seen_again_has_left_nothing(watched: Watched) -> None:
    """Whatever made the cache believe in its deletion: nothing of a job that is there may be deleted."""
    watched.cache.put_pod(raw_pod())
    watched.cache.apply_job("DELETED", raw_job())
    watched.cache.put_job(raw_job(version="50"))
    assert watched.cache.left_over(KEY) == ()
    assert watched.cache.jobs[KEY][0].uid == "job-1"


def test_an_old_deletion_is_not_that_of_the_job_of_today(watched: Watched) -> None:
    watched.cache.put_job(raw_job("job-2", "40"))
    watched.cache.put_pod(raw_pod(job_uid="job-2"))
    watched.cache.apply_job("DELETED", raw_job("job-1", "30"))
    assert watched.cache.jobs[KEY][0].uid == "job-2"
    assert watched.cache.left_over(KEY) == ()


def test_a_pod_that_is_given_to_another_job_leaves_the_first(watched: Watched) -> None:
    cache = watched.cache
    cache.put_pod(raw_pod())
    cache.put_node({"metadata": {"name": "node0"}})
    watched.woken.clear()
    labels = {names.LABEL_JOB: "other", names.LABEL_JOB_UID: "job-9", names.LABEL_INDEX: "0"}
    owner = {**OWNER, "name": "other", "uid": "job-9"}
    cache.put_pod(raw_pod(name="other-worker-0", labels=labels, ownerReferences=[owner], resourceVersion="21"))
    assert watched.woken == [KEY, ("team", "other")]
    assert (len(cache.pods(KEY)), len(cache.pods(("team", "other")))) == (0, 1)
    cache.drop_pod("u0")
    watched.woken.clear()
    cache.apply_node("DELETED", {"metadata": {"name": "node0"}})
    assert watched.woken == [], "no job has a pod on it"


def test_a_gate_that_the_answer_to_a_write_does_not_show_is_seen(watched: Watched) -> None:
    """Nobody writes to a pod that is kept from the scheduler, so its first version is the only one."""
    cache, pod = watched.cache, raw_pod()
    cache.put_pod({**pod, "status": {}})
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
    spec = {**pod["spec"], "schedulingGates": [{"name": "example.com/gate"}]}
    cache.put_pod({**pod, "spec": spec, "status": {"conditions": [gate]}})
    (found,) = cache.pods(KEY)
    assert found.waiting == "SchedulingGated"


def test_pods_that_have_not_ended_are_counted_by_namespace(watched: Watched) -> None:
    cache = watched.cache
    cache.put_job(raw_job())
    for index in range(3):
        cache.put_pod(raw_pod(index))
    assert cache.count_pods() == {"team": 3}
    ended = raw_pod(0, resourceVersion="21") | {"status": {"phase": "Succeeded"}}
    cache.put_pod(ended)
    cache.put_pod(raw_pod(1, resourceVersion="21"))
    assert cache.count_pods() == {"team": 2}
    cache.drop_pod("u0", "22")
    assert cache.count_pods() == {"team": 2}
    cache.drop_pod("u1", "22")
    cache.drop_pod("u2", "22")
    assert cache.count_pods() == {}
