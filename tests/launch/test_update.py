"""`update`: what is sent to a job that runs, where it goes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.cli.root import run
from elasticjob_operator.client import ClientError, Job, build_manifest
from elasticjob_operator.client.errors import NotFoundError
from elasticjob_operator.launch import update
from elasticjob_operator.launch.attach import attach
from elasticjob_operator.launch.bundle import Bundle, File
from elasticjob_operator.rest.request import Request

CODE = Bundle((File("train.py", b"print(1)\n"),))
OLD, NEW = "1" * 64, "2" * 64


def make_job(
    code: api.CodeStatus | None = None, asked: dict[str, Any] | None = None, bundle: Bundle | None = CODE, **spec: Any
) -> Job:
    manifest = build_manifest("train", "i", ["torchrun", f"{names.CODE_PATH}/train.py"])
    raw = attach(manifest, bundle).manifest if bundle is not None else manifest
    raw["spec"] |= spec | ({"code": asked} if asked else {})
    return Job(raw, api.Status(code=code))


def status(revision: int, digest: str | None, **more: Any) -> api.CodeStatus:
    return api.CodeStatus(revision=revision, digest=digest, **more)


def test_a_pod_has_a_place_for_two_revisions_that_need_not_be_there() -> None:
    spec = attach(build_manifest("train", "i", ["torchrun", "x"]), CODE).manifest["spec"]["template"]["spec"]
    volumes = {v["name"]: v["configMap"] for v in spec["volumes"]}
    mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
    for slot in names.UPDATE_SLOTS:
        volume = volumes[mounts[f"{names.UPDATES_PATH}/{slot}"]]
        assert volume == {"name": f"train-update-{slot}", "optional": True}, "of its own files it knows nothing yet"


def test_a_revision_is_complete_and_its_digest_is_that_of_all_of_it() -> None:
    revision = update.Revision(CODE, ("--lr", "1"), {"A": "b"})
    config_map = update.build_update("train-update-a", revision)
    assert "immutable" not in config_map, "kubelets look for no change of such"
    index = json.loads(config_map["data"].pop(names.UPDATE_INDEX))
    assert index == {
        "digest": revision.digest,
        "requirements": "",
        "files": [{"key": "0-train.py", "path": "train.py", "executable": False}],
        "arguments": ["--lr", "1"],
        "variables": {"A": "b"},
    }
    assert config_map["data"] == {"0-train.py": "print(1)\n"}
    others = (
        update.Revision(CODE, ("--lr", "2"), {"A": "b"}),
        update.Revision(CODE, ("--lr", "1")),
        update.Revision(CODE),
    )
    assert len({revision.digest, *(one.digest for one in others)}) == 4


@pytest.mark.parametrize(
    ("in_force", "found", "slot"),
    [
        (None, {"a": None, "b": None}, "a"),
        (OLD, {"a": OLD, "b": None}, "b"),
        (OLD, {"a": NEW, "b": OLD}, "a"),
        (OLD, {"a": OLD, "b": "3" * 64}, "b"),
        (None, {"a": "3" * 64, "b": NEW}, "b"),  # sent before, and not asked for
        (None, {"a": "3" * 64, "b": "4" * 64}, "a"),
    ],
)
def test_a_revision_never_takes_the_place_of_the_one_in_force(
    in_force: str | None, found: dict[str, str | None], slot: str
) -> None:
    job = make_job(status(1, in_force) if in_force else None)
    assert update.choose_slot(job, found, NEW) == slot


@pytest.mark.parametrize(
    ("code", "asked", "number"),
    [
        (None, None, 1),
        (status(3, OLD), {"revision": 3, "digest": OLD}, 4),
        (status(3, OLD, failed=api.CodeRevision(revision=5, digest=NEW)), {"revision": 5, "digest": NEW}, 6),
        (status(3, OLD), {"revision": 7, "digest": NEW}, 8),
    ],
)
def test_a_number_is_taken_once(code: api.CodeStatus | None, asked: dict[str, Any] | None, number: int) -> None:
    assert update.next_number(make_job(code, asked)) == number


BEFORE = api.CodeRevision(revision=2, digest=OLD)


@pytest.mark.parametrize(
    ("code", "asked", "undone"),
    [
        pytest.param(
            status(3, NEW, previous=BEFORE), {"revision": 3}, {"revision": 4, "digest": OLD}, id="the-one-before"
        ),
        pytest.param(
            status(1, NEW, previous=api.CodeRevision()),
            {"revision": 1},
            {"revision": 2, "digest": None},
            id="the-first-one",
        ),
        pytest.param(
            status(2, OLD), {"revision": 3, "digest": NEW}, {"revision": 2, "digest": OLD}, id="still-on-its-way"
        ),
        pytest.param(None, {"revision": 1, "digest": NEW}, None, id="the-first-update-is-still-on-its-way"),
    ],
)
def test_an_update_is_taken_back(
    code: api.CodeStatus | None, asked: dict[str, Any], undone: dict[str, Any] | None
) -> None:
    assert update.find_undone(make_job(code, asked)) == undone


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "has no revision to go back to"),
        (status(2, OLD, failed=api.CodeRevision(revision=3)), "revision 3 has been taken back already"),
    ],
)
def test_what_was_never_updated_cannot_be_taken_back(code: api.CodeStatus | None, said: str) -> None:
    with pytest.raises(ClientError, match=said):
        update.find_undone(make_job(code))


@pytest.mark.parametrize(
    ("job", "said"),
    [
        pytest.param(make_job(bundle=None), "no place for an update: .* Submit it as a new job", id="in-the-image"),
        pytest.param(
            Job(make_job().raw, api.Status(conditions=[api.Condition(type="Complete", status="True")])),
            "has finished: submit a new job",
            id="finished",
        ),
        pytest.param(
            make_job(rendezvous={"backend": "c10d"}),
            "spec.rendezvous.backend: of train is c10d, and updates need",
            id="another-launcher",
        ),
        pytest.param(
            make_job(managedBy="example.com/another"),
            "spec.managedBy: train is run by example.com/another, and only this operator brings",
            id="runs-elsewhere",
        ),
        pytest.param(
            make_job(runPolicy={"managedBy": "example.com/another"}),
            "spec.runPolicy.managedBy: train is run by example.com/another, and only this operator brings",
            id="runs-elsewhere-by-the-former-name",
        ),
        pytest.param(make_job(bundle=Bundle((File("train.py", b""),))), "", id="as-it-should-be"),
    ],
)
def test_which_jobs_can_be_updated(job: Job, said: str) -> None:
    if not said:
        update.check(job, CODE)
        return
    with pytest.raises(ClientError, match=said):
        update.check(job, CODE)


class Cluster:
    """As much of a client as `update` needs: a job, and the ConfigMap of its code. The rest is not there."""

    def __init__(self, job: Job, code: Bundle) -> None:
        self.job, self.connection, self.patched = job, self, 0
        self.code = attach(build_manifest("train", "i", ["torchrun", "x"]), code).config_map

    async def get(self, name: str) -> Job:
        return self.job

    async def ask(self, request: Request) -> Any:
        if request.method != "GET":
            return {}
        if self.code is not None and request.path.endswith(f"/{self.code['metadata']['name']}"):
            return self.code
        raise NotFoundError("not found")

    async def patch(self, name: str, body: dict[str, Any]) -> Job:
        self.patched += 1
        return self.job


def with_requirements(text: str | None) -> Bundle:
    files = (File("requirements.txt", text.encode()), *CODE.files) if text is not None else CODE.files
    return Bundle(files, "requirements.txt" if text is not None else None)


@pytest.mark.parametrize(
    ("had", "sent", "refused"),
    [
        (None, None, False),
        ("numpy", "numpy", False),
        ("numpy", None, False),
        ("numpy", "scipy", True),
        (None, "a", True),
    ],
)
async def test_other_packages_are_refused_with_what_to_do(had: str | None, sent: str | None, refused: bool) -> None:
    """Its pods would start without them, and fail where the code needs them."""
    cluster: Any = Cluster(make_job(bundle=with_requirements(had)), with_requirements(had))
    revision = update.Revision(with_requirements(sent), ("--lr", "1"))
    if refused:
        with pytest.raises(ClientError, match=r"^requirements\.txt: is not what train was submitted with, .*exclude"):
            await update.update(cluster, "train", revision)
    else:
        await update.update(cluster, "train", revision)
    assert cluster.patched == (not refused)


OTHER = update.Revision(CODE, ("--lr", "1"))


class Stored(Cluster):
    """With a ConfigMap in the place of the next revision, which somebody owns."""

    def __init__(self, job: Job, owners: list[dict[str, Any]]) -> None:
        super().__init__(job, CODE)
        name = names.update_config_map_name(job.name, "a")
        self.there: dict[str, Any] = {
            "metadata": {"name": name, "resourceVersion": "7", "ownerReferences": owners},
            "data": {"a": "b"},
        }
        self.written: list[Request] = []

    async def ask(self, request: Request) -> Any:
        if request.method != "GET":
            self.written.append(request)
            return {}
        if request.path.endswith(f"/{self.there['metadata']['name']}"):
            return self.there
        return await super().ask(request)


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="nobody's"),
        pytest.param([{"kind": "Deployment", "name": "web", "uid": "web", "controller": True}], id="another's"),
        pytest.param(
            [{"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "train", "uid": "u0"}], id="an-earlier-job's"
        ),
    ],
)
async def test_what_is_somebody_elses_is_not_written_over(owners: list[dict[str, Any]]) -> None:
    """Whoever may create jobs chooses their names, and whoever updates one may write any ConfigMap."""
    job = make_job()
    job.raw["metadata"]["uid"] = "u1"
    cluster: Any = Stored(job, owners)
    with pytest.raises(ClientError, match=r"^configmap train-update-a: is not one of train"):
        await update.update(cluster, "train", OTHER)
    assert not cluster.written
    assert not cluster.patched


async def test_a_revision_takes_the_place_of_an_older_one() -> None:
    job = make_job()
    job.raw["metadata"]["uid"] = "u1"
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "train", "uid": "u1"}
    cluster: Any = Stored(job, [owner])
    cluster.there["metadata"]["name"] = names.update_config_map_name("train", "b")
    await update.update(cluster, "train", OTHER)
    assert [request.method for request in cluster.written] == ["POST"], "where nothing is"
    cluster.there["metadata"]["name"] = names.update_config_map_name("train", "a")
    cluster.there["metadata"]["annotations"] = {names.ANNOTATION_CODE: f"sha256:{OTHER.digest}"}
    await update.update(cluster, "train", OTHER)
    assert [request.method for request in cluster.written] == ["POST", "PUT"], "where this code is"


@pytest.mark.parametrize(
    ("code", "revision", "is_refused"),
    [
        pytest.param(None, update.Revision(CODE), True, id="as-it-was-submitted"),
        pytest.param(None, update.Revision(CODE, None, {}), True, id="with-no-variables"),
        pytest.param(None, update.Revision(CODE, ("--lr", "1")), False, id="other-arguments"),
        pytest.param(None, update.Revision(CODE, (), {"A": "b"}), False, id="a-variable"),
        pytest.param(status(2, None), update.Revision(CODE), True, id="back-at-it"),
        pytest.param(status(1, OLD), update.Revision(CODE), False, id="another-in-force"),
        pytest.param(status(1, OTHER.digest), OTHER, True, id="the-same-in-force"),
    ],
)
async def test_an_update_that_changes_nothing_ends_no_world(
    code: api.CodeStatus | None, revision: update.Revision, is_refused: bool
) -> None:
    cluster: Any = Cluster(make_job(code), CODE)
    if is_refused:
        with pytest.raises(ClientError, match=r"^train: runs this code already, as "):
            await update.update(cluster, "train", revision)
    else:
        await update.update(cluster, "train", revision)
    assert cluster.patched == (not is_refused)


async def test_the_code_in_force_may_be_sent_in_place_of_what_is_on_its_way() -> None:
    cluster: Any = Cluster(make_job(None, {"revision": 1, "digest": NEW}), CODE)
    await update.update(cluster, "train", update.Revision(CODE))
    assert cluster.patched


@pytest.mark.parametrize(("there", "is_refused"), [(OLD, False), ("3" * 64, True)])
async def test_code_whose_files_have_made_way_is_not_asked_for(there: str, is_refused: bool) -> None:
    """An update that was taken back before it ran has taken their place. No pod would ever get them."""
    job = make_job(status(3, NEW, previous=BEFORE), {"revision": 3, "digest": NEW})
    job.raw["metadata"]["uid"] = "u1"
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "train", "uid": "u1"}
    cluster: Any = Stored(job, [owner])
    cluster.there["metadata"]["annotations"] = {names.ANNOTATION_CODE: f"sha256:{there}"}
    if is_refused:
        with pytest.raises(ClientError, match=r"^train: the files of revision 2 are gone.*send them again"):
            await update.undo(cluster, "train")
    else:
        await update.undo(cluster, "train")
    assert cluster.patched == (not is_refused)


def test_the_script_that_the_job_runs_must_be_in_the_code() -> None:
    with pytest.raises(ClientError, match=r"train\.py: is what train runs, and is not in the code that is sent"):
        update.check(make_job(), Bundle((File("other.py", b""),)))
    update.check(make_job(), None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("update x", "specify the new code"),
        ("update x --undo --code .", "specify the new code"),
        ("update x --undo -e A=1", "--undo takes no arguments"),
        ("update x --undo -- --lr 1", "--undo takes no arguments"),
        ("update x --code . -e =1", "must be KEY=VALUE"),
    ],
)
def test_misuse_is_told(
    line: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert run(line.split()) == 2
    assert said in capsys.readouterr().err
