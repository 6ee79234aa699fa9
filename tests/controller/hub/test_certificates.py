"""The hub's certificate authority: agents can verify the hub at every moment of every rotation."""

from __future__ import annotations

import math
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509

from controller.api_fixture import answering
from elasticjob_operator.hub import certificate_secret, certificates
from elasticjob_operator.kube.client import NotLeadingError
from elasticjob_operator.rest.errors import ApiError

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SANS = ("elasticjob-hub.elasticjob.svc", "10.96.0.17")
DAY = timedelta(days=1)


def handshake(bundle: certificates.Bundle, trust: bytes, name: str = SANS[0]) -> None:
    """A TLS handshake in memory; raises where the client does not trust the server."""
    client_context = ssl.create_default_context(cadata=trust.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = certificates.server_context(bundle).wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() in ("TLSv1.2", "TLSv1.3")


def test_agents_trust_a_new_bundle_by_name_and_by_address() -> None:
    bundle = certificates.create(SANS, datetime.now(UTC))
    handshake(bundle, bundle.trust)
    handshake(bundle, bundle.trust, SANS[1])


def test_nothing_older_than_tls_1_2_is_spoken() -> None:
    """Whether a client can speak it too is up to the OpenSSL of this machine."""
    context = certificates.server_context(certificates.create(SANS, datetime.now(UTC)))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_another_authority_and_another_name_are_refused() -> None:
    bundle = certificates.create(SANS, datetime.now(UTC))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(bundle, certificates.create(SANS, datetime.now(UTC)).trust)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(bundle, bundle.trust, "somebody.else")


@pytest.mark.parametrize(
    ("after", "sans", "due"),
    [
        pytest.param(timedelta(0), SANS, False, id="new"),
        pytest.param(59 * DAY, SANS, False, id="before two thirds"),
        pytest.param(61 * DAY, SANS, True, id="after two thirds"),
        pytest.param(timedelta(0), (*SANS, "other"), True, id="another name"),
        pytest.param(timedelta(0), tuple(reversed(SANS)), False, id="the same names in another order"),
        pytest.param(2500 * DAY, SANS, True, id="an old CA"),
    ],
)
def test_when_to_rotate(after: timedelta, sans: tuple[str, ...], due: bool) -> None:
    bundle = certificates.create(SANS, NOW)
    assert certificates.should_rotate(bundle, sans, NOW + after) is due
    refreshed = certificates.refresh(bundle, sans, NOW + after)
    assert (refreshed is bundle) is not due
    assert not certificates.should_rotate(refreshed, sans, NOW + after)


def test_ten_years_of_days_no_agent_ever_trusts_too_little() -> None:
    """Each day the operator refreshes; an agent's copy of the trust may be one day old."""
    bundle = certificates.create(SANS, NOW)
    day, trusted = NOW, bundle.trust
    authorities, servings = set(), set()
    for _ in range(4000):
        day += DAY
        refreshed = certificates.refresh(bundle, SANS, day)
        authorities.add(refreshed.authority.certificate)
        servings.add(refreshed.certificate)
        serving = x509.load_pem_x509_certificate(refreshed.certificate)
        assert serving.not_valid_before_utc <= day < serving.not_valid_after_utc
        issuers = {ca.subject for ca in x509.load_pem_x509_certificates(trusted)}
        assert serving.issuer in issuers, f"{day}: yesterday's trust does not know the CA"
        trusted, bundle = refreshed.trust, refreshed
    assert len(authorities) == 2 and len(servings) >= 60
    assert len(x509.load_pem_x509_certificates(bundle.trust)) <= 2, "what is over is forgotten"


def test_both_authorities_are_trusted_during_the_overlap() -> None:
    long_ago = datetime.now(UTC) - 2500 * DAY
    old = certificates.create(SANS, long_ago)
    announced = certificates.refresh(old, SANS, datetime.now(UTC) - 2 * DAY)
    assert announced.next_authority is not None and old.trust in announced.trust
    handshake(announced, old.trust)
    moved = certificates.refresh(announced, SANS, datetime.now(UTC))
    assert moved.authority == announced.next_authority and moved.next_authority is None
    handshake(moved, announced.trust)
    handshake(announced, moved.trust)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(moved, old.trust)


def test_a_secret_holds_the_whole_bundle() -> None:
    old = certificates.create(SANS, NOW)
    for bundle in (old, certificates.refresh(old, SANS, NOW + 2500 * DAY)):
        assert certificate_secret.from_secret_data(certificate_secret.to_secret_data(bundle)) == bundle


@pytest.mark.parametrize(
    "change",
    [
        {"tls.crt": None},
        {"authority.key": "bm90IGEga2V5"},
        {"tls.crt": "bm90IGEgY2VydA=="},
        {"tls.key": "not base64!"},
    ],
)
def test_a_damaged_secret_is_no_bundle(change: dict[str, str | None]) -> None:
    data = {**certificate_secret.to_secret_data(certificates.create(SANS, NOW)), **change}
    assert certificate_secret.from_secret_data({k: v for k, v in data.items() if v is not None}) is None
    assert certificate_secret.from_secret_data(None) is None


def test_a_hub_without_a_name_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="sans: at least one"):
        certificates.create((), NOW)


def test_keys_do_not_show_in_a_repr() -> None:
    bundle = certificates.create(SANS, NOW)
    assert "PRIVATE" not in repr(bundle) + str(bundle) + repr(bundle.authority)


def test_a_certificate_from_elsewhere_is_used_and_left_alone() -> None:
    data = certificate_secret.to_secret_data(certificates.create(SANS, datetime.now(UTC)))
    foreign = {key: data[key] for key in ("ca.crt", "tls.crt", "tls.key")}
    bundle = certificate_secret.from_secret_data(foreign)
    assert bundle is not None
    assert not certificates.should_rotate(bundle, ("another.name",), NOW + 3000 * DAY)
    handshake(bundle, bundle.trust)


async def test_a_secret_that_is_always_another_version_is_given_up(tmp_path: Path) -> None:
    writes = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal writes
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        writes += 1
        return web.json_response({"reason": "AlreadyExists"}, status=409)

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        with pytest.raises(ApiError, match="409 AlreadyExists"):
            await certificate_secret.ensure_certificates(api, "ops", "hub", SANS, NOW)
    assert writes == certificate_secret.ATTEMPTS


async def test_a_follower_reads_what_there_is_and_makes_nothing(tmp_path: Path) -> None:
    secret: dict[str, Any] = {}
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response(secret, status=200 if secret else 404)

    async with answering(answer, tmp_path) as api:
        assert await certificate_secret.read_certificates(api, "ops", "hub") is None
        bundle = certificates.create(SANS, NOW)
        secret |= {"metadata": {"name": "hub"}, "data": certificate_secret.to_secret_data(bundle)}
        assert await certificate_secret.read_certificates(api, "ops", "hub") == bundle
        later = NOW + timedelta(days=80)
        with pytest.raises(NotLeadingError):  # it is time to renew it, which is the leader's business
            await certificate_secret.ensure_certificates(api, "ops", "hub", SANS, later)
    assert set(asked) == {"GET"}
