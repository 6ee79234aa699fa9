"""An archive in a store that speaks S3: moto's server here, or a real one. `make test` runs it.

    export ELASTICJOB_TEST_ARCHIVE=s3://BUCKET/PREFIX ELASTICJOB_TEST_CREDENTIALS=FOLDER
    make test PYTEST_ARGS=tests/worker/archive/test_stores.py

The folder has one file for each key, like a mounted Secret.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import (  # type: ignore[import-not-found] # noqa: F401
    test_a_folder_is_pushed_and_pulled,
    test_a_part_that_is_not_there_has_no_bytes,
    test_a_save_comes_back_whole_and_only_what_changed_is_sent,
    test_old_saves_are_pruned,
    test_what_is_not_there_is_no_error_of_the_store,
    test_what_was_written_is_shown_at_once,
)
from serving import BUCKET, KEYS, Server, read_policy, serve  # type: ignore[import-not-found]

from elasticjob.archive import commands
from elasticjob.archive.restoring import Restorer
from elasticjob.archive.storage import RefusedError, Storage, StoreError

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def make_url() -> str:
    return f"s3://{BUCKET}/training/team-a/digits/{uuid.uuid4()}"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The URL of an empty folder, and the folder with the credentials: those that the documentation asks for."""
    given = os.environ.get("ELASTICJOB_TEST_ARCHIVE")
    if given:
        return f"{given.rstrip('/')}/{uuid.uuid4()}", Path(os.environ["ELASTICJOB_TEST_CREDENTIALS"])
    server: Server = request.getfixturevalue("server")
    return make_url(), server.write_secret(tmp_path / "secret", f"user-{uuid.uuid4()}", read_policy())


def test_what_a_store_says_is_told_apart(place: tuple[str, Path], tmp_path: Path) -> None:
    tmp_path /= "another"
    tmp_path.mkdir()
    with pytest.raises(RefusedError, match="credentialsSecret"):
        Storage(place[0], tmp_path).list("saves")
    for key in KEYS:
        (tmp_path / key).write_text("id")
    (tmp_path / "AWS_ENDPOINT_URL").write_text("http://127.0.0.1:9")
    with pytest.raises(StoreError, match="does not answer"):
        Storage(place[0], tmp_path).list("saves")


@pytest.mark.parametrize(("key", "text"), [(KEYS[0], "AKIAEXPIRED"), ("AWS_SESSION_TOKEN", "expired")])
def test_bad_credentials_are_told_and_changed_ones_count_at_once(
    place: tuple[str, Path], tmp_path: Path, key: str, text: str
) -> None:
    secret = tmp_path / "rotated"
    secret.mkdir()
    for path in place[1].iterdir():
        (secret / path.name).write_text(path.read_text())
    (secret / key).write_text(text)
    storage = Storage(place[0], secret)
    with pytest.raises(RefusedError, match="credentialsSecret"):
        storage.put("saves/x", b"1")
    (secret / key).unlink()
    if (place[1] / key).exists():
        (secret / key).write_text((place[1] / key).read_text())
    storage.put("saves/x", b"1")
    assert storage.get("saves/x") == b"1"


@pytest.mark.skipif("ELASTICJOB_TEST_ARCHIVE" in os.environ, reason="of the server here")
def test_the_documented_rights_reach_this_team_and_no_other(server: Server, tmp_path: Path) -> None:
    secret = server.write_secret(tmp_path, "team-a", read_policy())
    with pytest.raises(RefusedError, match="credentialsSecret"):
        Storage(f"s3://{BUCKET}/training/team-b/digits/uid", secret).put("saves/x", b"1")


@pytest.mark.skipif("ELASTICJOB_TEST_ARCHIVE" in os.environ, reason="of the server here")
def test_a_folder_of_another_team_to_begin_from_is_refused_with_the_field_and_whose_secret_counts(
    server: Server, tmp_path: Path
) -> None:
    """`checkpoints.from` with a Secret that reaches this job's folder, and not that of the job that wrote it."""
    secret = server.write_secret(tmp_path / "secret", f"user-{uuid.uuid4()}", read_policy())
    told: list[tuple[str, str]] = []

    class EnoughError(Exception):
        """The first answer is enough: it would ask again and again."""

    def tell(reason: str, text: str) -> None:
        told.append((reason, text))
        raise EnoughError

    def find(origin: str) -> tuple[str, str]:
        with pytest.raises(EnoughError):
            Restorer(make_url(), secret, (origin, None), tell).find(lambda: None, is_needed=True)
        return told.pop()

    origin = f"s3://{BUCKET}/training/team-b/digits/uid"
    theirs = json.loads(json.dumps(read_policy()).replace("team-a", "team-b"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source/model").write_bytes(b"1")
    commands.push(Storage(origin, server.write_secret(tmp_path / "theirs", "team-b", theirs)), tmp_path / "source")
    reason, text = find(origin)
    assert reason == "StoreRefused"
    assert f"checkpoints.from: the store refuses {origin}" in text
    assert "only this job's own checkpoints.archive.credentialsSecret" in text and "list and read" in text
    reason, text = find("gs://bucket/team-b/digits/uid")
    assert reason == "StoreRefused" and text.startswith("checkpoints.from: "), text
    assert "GOOGLE_APPLICATION_CREDENTIALS" in text and "only this job's own" in text
    (secret / KEYS[0]).write_text("AKIAWRONG")
    assert "checkpoints.from" not in find(origin)[1], "what is wrong is the job's own archive"


@pytest.mark.skipif("ELASTICJOB_TEST_ARCHIVE" in os.environ, reason="of the server here")
@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
def test_each_documented_right_is_needed(server: Server, tmp_path: Path, action: str) -> None:
    policy = read_policy()
    for one in policy["Statement"]:
        asked = [one["Action"]] if isinstance(one["Action"], str) else one["Action"]
        one["Action"] = [said for said in asked if said != action]
    policy["Statement"] = [one for one in policy["Statement"] if one["Action"]]
    storage = Storage(make_url(), server.write_secret(tmp_path, f"without-{action[3:]}", policy))
    with pytest.raises(RefusedError):
        storage.put("saves/x", b"1")
        storage.list("saves")
        storage.get("saves/x")
        storage.delete("saves/x")
