"""The permissions in `docs/cli.md` are exactly what the commands use.

For each row of its table a service account gets a Role with only these permissions, and runs the row's commands. The
API server's audit log shows their requests: none may be forbidden, and no permission may be unused.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chart_fixture import ROOT
from controller import client_fixture as given
from devcluster_fixture import remove_namespace
from elasticjob_devcluster import Cluster
from elasticjob_operator.cli.root import COMMANDS, run
from elasticjob_operator.launch.attach import attach
from elasticjob_operator.launch.bundle import Bundle, File
from manifests.test_chart_release import remove_crds
from manifests.test_rbac import RBAC, Audit, find_unused, read_grants
from operator_fixture import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SPACE = "rights"
GROUPS = {"elasticjobs": "elasticjob.dev", "elasticjobs/scale": "elasticjob.dev"}
# Not asked for by this API server: from 1.35 on it is, also where a WebSocket is opened by GET.
BY_NEWER_SERVERS = [("pods/exec", "create")]


@dataclass(frozen=True)
class Right:
    group: str
    resource: str
    verbs: tuple[str, ...]

    def rule(self) -> dict[str, list[str]]:
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}


def read_table() -> dict[str, list[Right]]:
    """Commands → rights, as the page says it."""
    section = (ROOT / "docs" / "cli.md").read_text().partition("## Rights")[2]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {commands: [parse_right(text) for text in rights.split("; ")] for commands, rights in rows[1:]}


def parse_right(text: str) -> Right:
    *group, resource = re.findall(r"`([^`]+)`", text)
    verbs = re.findall(r"\b(get|list|watch|create|patch|update|delete)\b", text.rpartition("`")[2])
    return Right(group[0] if group else GROUPS.get(resource, ""), resource, tuple(verbs))


TABLE = read_table()
FIRST = next(iter(TABLE))
INSIDE = "exec, debug, cp, checkpoints that pulls or prunes in a pod"
PATCH = "suspend, resume, scale to `auto`"
CASES: dict[str, tuple[str, list[str]]] = {  # command → (row, command lines)
    "list": (FIRST, ["list", "list -l a=b -o yaml"]),
    "nodes": (FIRST, ["nodes"]),
    "describe": (FIRST, ["describe NAME"]),
    "wait": (FIRST, ["wait NAME --for Running"]),
    "watch": (FIRST, ["watch NAME"]),
    "top": (FIRST, ["top"]),
    "events": (FIRST, ["events NAME"]),
    "report": (FIRST, ["report NAME --html REPORT"]),
    "dashboard": (FIRST, ["dashboard --no-browser --timeout 3"]),
    "rules": (FIRST, ["rules test NAME"]),
    "checkpoints": (FIRST, ["checkpoints NAME"]),
    "logs": ("logs", ["logs NAME", "logs NAME -f", "logs NAME --rank 0 --tail 1"]),
    "diagnose": ("diagnose", ["diagnose NAME"]),
    "submit": ("submit", ["submit train.py --image i --name made", "submit SCRIPT --image i --name sent"]),
    "update": (
        "update",
        [*(f"update NAME --code SCRIPT -e A={number}" for number in (1, 2, 3)), "update NAME --undo"],
    ),
    "scale": ("scale", ["scale NAME 3"]),
    "suspend": (PATCH, ["suspend NAME"]),
    "resume": (PATCH, ["resume NAME"]),
    "scale to auto": (PATCH, ["scale NAME auto"]),
    "delete": ("delete", ["delete NAME"]),
    "chaos": ("chaos", ["chaos rank NAME 1", "chaos pod NAME 0", "chaos node NAME NODE"]),
    "exec": (INSIDE, ["exec NAME -- true"]),
    "debug": (INSIDE, ["debug NAME --rank 1"]),  # which finds no worker there
    "cp": (INSIDE, ["cp FILE COPY"]),
    "checkpoints prune": (INSIDE, ["checkpoints NAME prune --keep 1"]),  # of an archive that nobody has
    "top NAME": ("top with CPU and memory", ["top NAME"]),
}
WITHOUT_A_CLUSTER = {"convert", "completion", "local"}


@pytest.fixture(scope="module")
def space(audited: Cluster) -> Iterator[str]:
    given.install_crd(audited)
    audited.make_namespace(SPACE)
    yield SPACE
    remove_namespace(audited, SPACE)
    remove_crds(audited)  # Helm takes over none that is not its own


class User:
    """A service account with these rights in one namespace."""

    def __init__(self, cluster: Cluster, space: str, name: str, rights: list[Right], directory: Path) -> None:
        self.cluster = cluster
        self.name = f"system:serviceaccount:{space}:{name}"
        self.requests = Audit(cluster, self.name).read
        kube, metadata = cluster.kube, {"name": name}
        accounts = f"/api/v1/namespaces/{space}/serviceaccounts"
        kube.request("POST", accounts, {"metadata": metadata})
        roles = f"{RBAC}/namespaces/{space}"
        kube.request("POST", f"{roles}/roles", {"metadata": metadata, "rules": [right.rule() for right in rights]})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": space}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        kube.request("POST", f"{roles}/rolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]})
        wait_for(lambda: all(self._may(space, r, verb) for r in rights for verb in r.verbs), "the rights are granted")
        token = kube.request("POST", f"{accounts}/{name}/token", {"spec": {}})["status"]["token"]
        config = json.loads(cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def _may(self, space: str, right: Right, verb: str) -> bool:
        resource, _, subresource = right.resource.partition("/")
        wanted = {"namespace": space, "group": right.group, "resource": resource, "subresource": subresource}
        spec = {"user": self.name, "resourceAttributes": {**wanted, "verb": verb}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.cluster.kube.request("POST", path, {"spec": spec})["status"]["allowed"])


def is_watched(cluster: Cluster) -> bool:
    """Whether somebody watches the ElasticJobs of one namespace. (The audit log tells of a watch when it has ended.)"""
    text = cluster.kube.raw("GET", "/metrics").decode()
    lines = re.findall(r"^apiserver_longrunning_(?:gauge|requests)\{(.*)\} ([1-9].*)$", text, re.MULTILINE)
    ours = ('resource="elasticjobs"', 'verb="WATCH"')
    return any(all(word in labels for word in ours) and 'scope="cluster"' not in labels for labels, _ in lines)


@pytest.fixture
def when_watched(audited: Cluster) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Acts once the jobs are watched: a command that watches ends by what happens then."""
    threads: list[threading.Thread] = []
    over = threading.Event()

    def begin(act: Callable[[], object]) -> None:
        def wait() -> None:
            while not over.wait(0.1):
                if is_watched(audited):
                    act()
                    return

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("row", TABLE)
def test_the_rights_in_the_guide_are_those_that_the_commands_use(
    audited: Cluster,
    space: str,
    row: str,
    tmp_path: Path,
    when_watched: Callable[[Callable[[], object]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rights = TABLE[row] if row != "top with CPU and memory" else TABLE[row] + TABLE[FIRST]
    name = f"job-{list(TABLE).index(row)}"
    jobs = f"/apis/elasticjob.dev/v1alpha1/namespaces/{space}/elasticjobs"
    job = given.manifest(name)
    if row == PATCH:  # nobody else chooses the size of other jobs
        job["spec"]["scaling"] = {"mode": "Goodput"}
    if row == "update":
        job = attach(job, Bundle((File("script.py", b""),))).manifest
    audited.kube.request("POST", jobs, job)
    status = given.running_status()
    for member in status["rendezvous"]["members"]:
        member["pod"] = member["pod"].replace("digits", name)
    if row == INSIDE:
        status["archive"] = {"url": f"file:///there/is/none/{space}/{name}/uid"}
    if row == "diagnose":
        status["diagnosis"] = {"kind": "WorldHung", "generation": 1, "summary": "no step for 130 s"}
    given.write_status(audited, space, name, status)
    if row in ("logs", "chaos", "diagnose", INSIDE):
        for index in (0, 1, 2):
            given.run_pod(audited, space, name, index, "echo said" if row == "logs" else "exec sleep 1000")
    user = User(audited, space, name, rights, tmp_path)
    done = {"phase": "Complete", "conditions": [given.condition("Complete")]}
    when_watched(lambda: given.write_status(audited, space, name, done))
    if row == "logs":  # to follow ends with the job
        given.write_status(audited, space, name, done | {"rendezvous": status["rendezvous"]})
    (tmp_path / "script.py").touch()
    values = {
        "NAME": name,
        "REPORT": str(tmp_path / "report.html"),
        "SCRIPT": str(tmp_path / "script.py"),
        "COPY": str(tmp_path / "copy"),
        "FILE": f"{name}:/etc/hosts",
    }
    for line in [line for place, lines in CASES.values() if place == row for line in lines]:
        if "NODE" in line:
            pod = audited.kube.request("GET", f"/api/v1/namespaces/{space}/pods/{name}-worker-2")
            values["NODE"] = pod["spec"]["nodeName"]
        code = run(["--kubeconfig", str(user.kubeconfig), "-n", space, *(values.get(w, w) for w in line.split())])
        assert code == (1 if line.startswith("debug") else 0), (
            line,
            capsys.readouterr().err,
        )
    requests = user.requests()
    assert [r for r in requests if not r.allowed] == [], "a right is missing in the guide"
    mine = {(right.group, right.resource) for right in TABLE[row]}
    unused = [g for g in find_unused(read_grants(audited, user.name), requests) if (g.group, g.resource) in mine]
    assert [(g.resource, g.verb) for g in unused if (g.resource, g.verb) not in BY_NEWER_SERVERS] == []


def test_every_command_is_in_the_table_or_needs_no_cluster() -> None:
    known = {word for row in TABLE for word in re.findall(r"\w+", row)}
    visible = {name for name, place in COMMANDS.items() if place.help}
    assert visible - known == WITHOUT_A_CLUSTER
    assert visible - known <= set(re.findall(r"\w+", (ROOT / "docs" / "cli.md").read_text().partition("## Rights")[2]))
    assert {row for row, _ in CASES.values()} == set(TABLE)
    tried = {line.split()[0] for _, lines in CASES.values() for line in lines}
    assert tried == visible - WITHOUT_A_CLUSTER
