"""Expired certificates: the API server's while it is in use, and the hub's while no operator runs."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from chaos.trials import Report
from elasticjob_devcluster import Cluster
from elasticjob_operator.hub import certificate_secret, certificates
from operator_fixture import Jobs, OperatorProcess, light_spec, wait_for

LIFE = 25.0  # seconds
RELOAD = 120.0  # an API server looks at its certificate once a minute


def run(cluster: Cluster, seed: int, directory: Path) -> Report:
    """Both scenarios, one after the other."""
    report, began = Report("certificates", seed), time.monotonic()
    for number, story in enumerate((the_api_servers_runs_out, the_hubs_ran_out)):
        namespace = f"certificates-{number}"
        cluster.make_namespace(namespace)
        report.histories += 1
        report.faults += 1
        try:
            story(cluster, Jobs(cluster, namespace), directory)
        except AssertionError as error:
            report.violations.append(f"{story.__name__}: {error}")
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report


def the_api_servers_runs_out(cluster: Cluster, jobs: Jobs, directory: Path) -> None:
    """An operator that starts then cannot connect and reports why; training continues; then it recovers."""
    operator = OperatorProcess(cluster, directory, "--namespace", jobs.namespace)
    ends = time.monotonic() + LIFE
    issue_server_certificate(cluster.directory / "pki", LIFE)
    cluster.restart_apiserver()
    operator.start()
    try:
        jobs.create("digits", light_spec("--step-seconds", "0.2", replicas=2))
        before = jobs.await_world("digits", 2)["rendezvous"]["generation"]
        time.sleep(max(0.0, ends - time.monotonic()) + 1.0)
        operator.kill()
        operator.start()
        wait_for(lambda: "certificate has expired" in operator.log, f"it says why: {operator.log[-500:]}", 30)
        assert operator.process is not None
        assert operator.process.poll() is None, f"it goes on trying: {operator.log[-1000:]}"
        issue_server_certificate(cluster.directory / "pki", 30 * 86400)
        wait_for(lambda: _is_served(cluster), "the API server has a good certificate again", RELOAD, 1.0)
        jobs.scale("digits", 1)
        after = jobs.await_world("digits", 1, timeout=RELOAD)["rendezvous"]["generation"]
        assert after == before + 1, "nothing but the scale-down disturbed the world"
        assert operator.starts == 2
    finally:
        issue_server_certificate(cluster.directory / "pki", 30 * 86400)
        operator.stop()


def the_hubs_ran_out(cluster: Cluster, jobs: Jobs, directory: Path) -> None:
    """The operator returns after its certificate has expired, and renews it before any agent connects."""
    past = datetime.datetime.now(datetime.UTC) - 2 * certificates.SERVING_LIFE
    old = certificates.create(["localhost", "127.0.0.1"], past)
    secret = {"metadata": {"name": "hub"}, "type": "kubernetes.io/tls", "data": certificate_secret.to_secret_data(old)}
    path = f"/api/v1/namespaces/{jobs.namespace}/secrets"
    jobs.kube.request("POST", path, secret)
    flags = ("--namespace", jobs.namespace, "--operator-namespace", jobs.namespace, "--tls-secret", "hub")
    operator = OperatorProcess(cluster, directory, *flags)
    operator.start()
    try:
        jobs.create("digits", light_spec("--step-seconds", "0.2", replicas=2))
        jobs.await_world("digits", 2)
        found = certificate_secret.from_secret_data(jobs.kube.request("GET", f"{path}/hub")["data"])
        assert found is not None
        assert found.certificate != old.certificate, "it was renewed"
        assert found.authority == old.authority, "agents that know the authority still trust it"
    finally:
        operator.stop()


def _is_served(cluster: Cluster) -> bool:
    try:
        cluster.kube.request("GET", "/version")
    except OSError:
        return False
    return True


def issue_server_certificate(pki: Path, life: float) -> None:
    """A serving certificate of the API server, valid for this many seconds, from the cluster's own CA."""
    authority = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    present = x509.load_pem_x509_certificate((pki / "apiserver.crt").read_bytes())
    key = serialization.load_pem_private_key((pki / "apiserver.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names = present.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(authority.subject, present.subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(seconds=life))
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (pki / "apiserver.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
