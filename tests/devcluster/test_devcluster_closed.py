"""Other users of the machine reach no data of a devcluster: neither its etcd, which knows no rights, nor its files."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elasticjob_devcluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def find_ports(cluster: Cluster) -> dict[str, int]:
    """Where the cluster's etcd listens, as every user of the machine sees it in the list of processes."""
    identity = json.loads((cluster.directory / "config.json").read_text())["id"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[0].endswith("/etcd") and any(word.startswith("--data-dir=") and identity in word for word in words):
            found = dict(word.lstrip("-").partition("=")[::2] for word in words)
            flags = {"clients": "listen-client-urls", "peers": "listen-peer-urls"}
            return {who: urlsplit(found[flag]).port or 0 for who, flag in flags.items()}
    raise AssertionError("the cluster has no etcd")


def ask(port: int, tls: ssl.SSLContext | None, path: str = "/version", host: str = "127.0.0.1") -> int:
    """The status of the answer to a request; raises OSError or HTTPException without one."""
    connection = (
        http.client.HTTPConnection(host, port, timeout=10)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=10, context=tls)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def without_a_check(certificate: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        made.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return made


def test_etcd_answers_only_its_cluster(cluster: Cluster) -> None:
    ports = find_ports(cluster)
    for port in ports.values():
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, None)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, without_a_check())
        # Whoever may use the cluster as its administrator has no business in its database either.
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, without_a_check(cluster.directory / "pki/admin.crt"))
    assert ask(ports["clients"], without_a_check(cluster.directory / "pki/etcd/client.crt")) == 200


def test_a_node_answers_only_the_api_server(cluster: Cluster) -> None:
    """It runs commands in every pod for whoever it answers, and asks nobody what they may do."""
    node = json.loads(next(cluster.directory.glob("nodes/*/node.json")).read_text())
    paths = ("/healthz", "/containerLogs/default/x/main", "/exec/default/x/main?command=id")

    def answer(who: str) -> list[int]:
        tls = without_a_check(cluster.directory / "pki" / f"{who}.crt")
        return [ask(node["port"], tls, path, node["address"]) for path in paths]

    assert answer("kubelet-client") == [200, 404, 404]
    for who in ("admin", "apiserver", f"node-{node['name']}"):
        assert answer(who) == [403, 403, 403]
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(node["port"], without_a_check(), paths[0], node["address"])


def test_files_are_the_owners_alone(cluster: Cluster) -> None:
    """Everybody could read the directory when the cluster was started in it: see the fixture."""
    assert oct(cluster.directory.stat().st_mode & 0o777) == "0o700"
