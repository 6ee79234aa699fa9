"""moto's server of S3 and IAM, with one bucket: for tests in its own process, and as a program for others.

The program reads commands from stdin, and answers each with a line of JSON: `keys USER` makes a new access key for a
user who has the rights of the documentation, and deletes those before; `saves URL` lists the files of each save, newest
first. It begins with the address of the server.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "my-bucket"
REGION = "us-east-1"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
DOCS = Path(__file__).resolve().parents[2] / "docs/checkpoints.md"


@dataclass(frozen=True)
class Server:
    """A server with one bucket, which asks everybody for a right."""

    url: str
    users: Any  # a client of IAM

    def make_user(self, name: str, policy: Mapping[str, Any]) -> None:
        """A user who has these rights."""
        self.users.create_user(UserName=name)
        self.users.put_user_policy(UserName=name, PolicyName="archive", PolicyDocument=json.dumps(policy))

    def change_keys(self, name: str) -> dict[str, str]:
        """A new access key of this user, as the keys of a Secret; those before are refused from now on."""
        for one in self.users.list_access_keys(UserName=name)["AccessKeyMetadata"]:
            self.users.delete_access_key(UserName=name, AccessKeyId=one["AccessKeyId"])
        made = self.users.create_access_key(UserName=name)["AccessKey"]
        said = (made["AccessKeyId"], made["SecretAccessKey"], REGION, self.url)
        return dict(zip((*KEYS, "AWS_REGION", "AWS_ENDPOINT_URL"), said, strict=True))

    def write_secret(self, folder: Path, name: str, policy: Mapping[str, Any]) -> Path:
        """The keys of a new user, who has these rights."""
        self.make_user(name, policy)
        write_keys(folder, self.change_keys(name))
        return folder


def write_keys(folder: Path, keys: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for key, value in keys.items():
        (folder / key).write_text(f"{value}\n")


@contextlib.contextmanager
def serve() -> Iterator[Server]:
    """The client of IAM that makes users keeps a right that it was given before anybody was asked."""
    running = ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    url = f"http://{host}:{port}"

    def connect(service: str, key: str, secret: str) -> Any:
        given = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client(service, region_name=REGION, endpoint_url=url, **given)

    users = connect("iam", "anybody", "anything")
    connect("s3", "anybody", "anything").create_bucket(Bucket=BUCKET)
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    users.create_user(UserName="root")
    users.put_user_policy(UserName="root", PolicyName="all", PolicyDocument=json.dumps(everything))
    made = users.create_access_key(UserName="root")["AccessKey"]
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{url}/moto-api/reset-auth", data=b"0", headers=plain, method="POST")
    with urllib.request.urlopen(request, timeout=30):
        pass  # from now on, everybody is asked
    try:
        yield Server(url, connect("iam", made["AccessKeyId"], made["SecretAccessKey"]))
    finally:
        running.stop()


def read_policy() -> dict[str, Any]:
    """The least that AWS needs, as the documentation says."""
    (text,) = re.findall(r"```json\n(\{.*?)```", DOCS.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    from elasticjob.archive import reading
    from elasticjob.archive.storage import Storage

    with serve() as server, tempfile.TemporaryDirectory() as name:
        secret = server.write_secret(Path(name) / "secret", "reader", read_policy())
        known = set[str]()
        print(json.dumps({"url": server.url}), flush=True)
        for line in sys.stdin:
            command, argument = line.split()
            if command == "keys":
                if argument not in known:
                    server.make_user(argument, read_policy())
                    known.add(argument)
                answer: object = server.change_keys(argument)
            else:
                answer = [sorted(save.record.files) for _, save in reading.find_saves(Storage(argument, secret))]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
