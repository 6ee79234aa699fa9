"""An archive in a store that speaks S3: moto's server here, or a real one.

    ELASTICJOB_TEST_ARCHIVE=s3://BUCKET/PREFIX ELASTICJOB_TEST_CREDENTIALS=FOLDER pytest tests/worker/archive/test_s3.py

`pip install 'elasticjob[s3]' 'moto[server]'` first. The folder has one file for each key, like a mounted Secret.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from elasticjob.archive import reading
from elasticjob.archive.layout import ALONE, Object, locate
from elasticjob.archive.storage import NotThereError, RefusedError, Storage, StoreError
from elasticjob.archive.writing import Leader, Sender
from elasticjob.peers.chunks import digest_of
from elasticjob.peers.records import File, Record

pytest.importorskip("s3fs")
pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of an empty folder, and the folder with the credentials."""
    given = os.environ.get("ELASTICJOB_TEST_ARCHIVE")
    if given:
        yield f"{given.rstrip('/')}/{uuid.uuid4()}", Path(os.environ["ELASTICJOB_TEST_CREDENTIALS"])
        return
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    folder = tmp_path_factory.mktemp("secret")
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    for key, value in {**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        (folder / key).write_text(f"{value}\n")
    storage = Storage("s3://bucket/x", folder)
    storage.open()
    storage._files.mkdir("bucket")
    yield "s3://bucket/ns/job/uid", folder
    server.stop()


def test_a_save_comes_back_whole_and_only_what_changed_is_sent(place: tuple[str, Path]) -> None:
    rng = random.Random(1)
    files = {f"small/{i}": rng.randbytes(200) for i in range(500)} | {"large": rng.randbytes(ALONE + 5)}
    chunks = {digest_of(data): data for data in files.values()}
    storage = Storage(*place)
    sender, leader = Sender(storage, chunks.get, 1e12), Leader(storage, "uid", 1, 1, lambda: "now")

    def send(shares: Mapping[int, Sequence[Object]]) -> None:
        for objects in shares.values():
            sender.send(objects, lambda: False)

    def save(number: int) -> None:
        record = Record(1, number, {path: File(len(data), 0o600, (digest_of(data),)) for path, data in files.items()})
        leader.save(record, number, lambda missing: dict.fromkeys(missing, (0,)), send)
        leader.tidy()

    save(1)
    assert len(storage.list("objects")) == 2, "small files are packed"
    sent = sender.bytes
    for number in (2, 3, 4):
        files["small/0"] = bytes([number]) * 300
        chunks[digest_of(files["small/0"])] = files["small/0"]
        save(number)
    assert sender.bytes == sent + 900
    found = reading.find_saves(Storage(*place))
    assert found[0][1].step == 4
    places = locate(found[0][1].objects)
    read = {
        path: b"".join(reading.read_chunk(storage, digest, places[digest]) for digest in file.chunks)
        for path, file in found[0][1].record.files.items()
    }
    assert read == files
    assert len(found) <= 2, "older saves are gone"


def test_what_a_store_says_is_told_apart(place: tuple[str, Path], tmp_path: Path) -> None:
    storage = Storage(*place)
    with pytest.raises(NotThereError):
        storage.get("saves/none")
    storage.delete("saves/none")
    assert storage.list("nothing") == {}
    with pytest.raises(RefusedError, match="credentialsSecret"):
        Storage(place[0], tmp_path).list("saves")
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (tmp_path / key).write_text("id")
    (tmp_path / "AWS_ENDPOINT_URL").write_text("http://127.0.0.1:9")
    with pytest.raises(StoreError, match="does not answer"):
        Storage(place[0], tmp_path).list("saves")


def test_changed_credentials_count_from_the_next_request(place: tuple[str, Path], tmp_path: Path) -> None:
    for path in place[1].iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    storage = Storage(place[0], tmp_path)
    storage.list("saves")
    before = storage._files
    (tmp_path / "AWS_SESSION_TOKEN").write_text("new")
    storage.list("saves")
    assert storage._files is not before
