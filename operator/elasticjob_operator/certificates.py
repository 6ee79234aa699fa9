"""The hub's own certificate authority: agents trust it, and nobody else has to run one.

A bundle is a CA, a serving certificate, and the certificates of the CAs that agents may trust. It lives in a
Secret. The serving certificate is renewed when two thirds of its life are over. The CA is renewed in two steps:
first the new one is added to what agents trust and only later does it sign, so that at no moment an agent
trusts less than it needs. Creating and judging are pure; the Secret is read and written at the end.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticjob_operator import names
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.kube import Api, ApiError, path_of

CA_LIFE: Final = timedelta(days=3650)
SERVING_LIFE: Final = timedelta(days=90)
# How long a new CA is handed out before it signs: kubelets refresh projected volumes within minutes.
CA_OVERLAP: Final = timedelta(days=1)
_SKEW: Final = timedelta(hours=1)
_RENEW_AT: Final = 2 / 3
ATTEMPTS: Final = 5  # to write the Secret where somebody else writes it too


class UnusableSecretError(ValueError):
    """The Secret belongs to somebody else and holds no certificate for the hub."""


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: bytes  # PEM
    key: bytes = field(repr=False)  # PEM; empty where the certificate comes from elsewhere


@dataclass(frozen=True, slots=True)
class Bundle:
    """All of it, in PEM. `repr` shows no keys."""

    authority: Authority
    certificate: bytes
    key: bytes
    next_authority: Authority | None = None  # handed out already, signs when agents have had time to learn it
    retired: bytes = b""  # certificates of former CAs that still have to be trusted

    @property
    def trust(self) -> bytes:
        """What agents get as `ca.crt`."""
        following = self.next_authority.certificate if self.next_authority is not None else b""
        return self.authority.certificate + following + self.retired

    def __repr__(self) -> str:
        return f"Bundle(until={_loaded(self.certificate).not_valid_after_utc.isoformat()})"


def create(sans: Sequence[str], now: datetime) -> Bundle:
    """A new CA and a serving certificate for these names and addresses."""
    return _sign(Bundle(_new_authority(now), b"", b""), sans, now)


def refresh(bundle: Bundle, sans: Sequence[str], now: datetime) -> Bundle:
    """The bundle as it should be now: the same object where nothing has to change."""
    if not bundle.authority.key:
        return bundle  # somebody else, such as cert-manager, made it and renews it
    following = bundle.next_authority
    if following is None and _is_old(bundle.authority.certificate, now):
        bundle = replace(bundle, next_authority=_new_authority(now))
    elif following is not None and _age(following.certificate, now) >= CA_OVERLAP:
        # Agents that reconnect in the middle of this still know the old one.
        old = bundle.authority.certificate
        bundle = replace(bundle, authority=following, next_authority=None, retired=old)
        return _sign(bundle, sans, now)
    if bundle.retired and _loaded(bundle.retired).not_valid_after_utc <= now:
        bundle = replace(bundle, retired=b"")
    if _should_sign(bundle, sans, now):
        bundle = _sign(bundle, sans, now)
    return bundle


def should_rotate(bundle: Bundle, sans: Sequence[str], now: datetime) -> bool:
    """Whether `refresh` would change anything."""
    return refresh(bundle, sans, now) is not bundle


def server_context(bundle: Bundle) -> ssl.SSLContext:
    """For the hub's listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Each session ticket and each cached session is memory of a connection that need not be.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    with _private_file(bundle.key + bundle.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """The standard library loads keys from files only: one in memory, for a root filesystem may be read-only."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("elasticjob-hub")
        try:
            os.write(number, content)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(content)
        file.flush()
        yield file.name


def _loaded(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _age(pem: bytes, now: datetime) -> timedelta:
    return now - (_loaded(pem).not_valid_before_utc + _SKEW)


def _is_old(pem: bytes, now: datetime) -> bool:
    certificate = _loaded(pem)
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + life * _RENEW_AT


def _should_sign(bundle: Bundle, sans: Sequence[str], now: datetime) -> bool:
    certificate = _loaded(bundle.certificate)
    if _is_old(bundle.certificate, now):
        return True
    if certificate.issuer != _loaded(bundle.authority.certificate).subject:
        return True
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(found) != set(_general_names(sans))


def _new_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Every CA has a name of its own, so that a client with two of them picks the right one.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ElasticJob hub CA {serial:x}"[:64])])
    builder = (
        _builder(name, name, public_key=key.public_key(), serial=serial, now=now, life=CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def _sign(bundle: Bundle, sans: Sequence[str], now: datetime) -> Bundle:
    authority = _loaded(bundle.authority.certificate)
    signer = serialization.load_pem_private_key(bundle.authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ElasticJob hub")])
    serial = x509.random_serial_number()
    life = min(SERVING_LIFE, authority.not_valid_after_utc - now)
    builder = (
        _builder(name, authority.subject, public_key=key.public_key(), serial=serial, now=now, life=life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_general_names(sans)), critical=False)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return replace(bundle, certificate=_pem(builder.sign(signer, hashes.SHA256())), key=_key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    *,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=public_key,
        serial_number=serial,
        not_valid_before=now.replace(microsecond=0) - _SKEW,  # clocks of nodes differ
        not_valid_after=now.replace(microsecond=0) + life,
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(sans: Sequence[str]) -> list[x509.GeneralName]:
    if not sans:
        raise ValueError("sans: give at least one DNS name or IP address of the hub")
    found: list[x509.GeneralName] = []
    for san in dict.fromkeys(sans):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(san)))
        except ValueError:
            found.append(x509.DNSName(san))
    return found


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


# The Secret. A `kubernetes.io/tls` Secret has the keys that people and tools expect, and takes more.


def to_secret_data(bundle: Bundle) -> dict[str, str]:
    following = bundle.next_authority
    data = {
        "ca.crt": bundle.trust,
        "tls.crt": bundle.certificate,
        "tls.key": bundle.key,
        "authority.crt": bundle.authority.certificate,
        "authority.key": bundle.authority.key,
        "next-authority.crt": following.certificate if following is not None else b"",
        "next-authority.key": following.key if following is not None else b"",
        "retired.crt": bundle.retired,
    }
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def from_secret_data(data: Mapping[str, bytes | str] | None) -> Bundle | None:
    """None where the Secret holds no whole bundle. One without the CA's key is another's certificate."""
    try:
        raw = {key: base64.b64decode(value, validate=True) for key, value in (data or {}).items()}
        foreign = "authority.key" not in raw
        authority = Authority(raw["ca.crt" if foreign else "authority.crt"], raw.get("authority.key", b""))
        following = None
        if raw.get("next-authority.crt"):
            following = Authority(raw["next-authority.crt"], raw["next-authority.key"])
        bundle = Bundle(authority, raw["tls.crt"], raw["tls.key"], following, raw.get("retired.crt", b""))
        for pem in (authority.certificate, bundle.certificate, *([following.certificate] if following else [])):
            _loaded(pem)
        for key in (bundle.key, *([] if foreign else [authority.key]), *([following.key] if following else [])):
            serialization.load_pem_private_key(key, None)
        return bundle
    except (KeyError, ValueError, TypeError):
        return None


async def read_certificates(api: Api, namespace: str, secret_name: str) -> Bundle | None:
    """What the Secret holds; None where it is not there or its owner, the leader, has yet to mend it."""
    return _parse(await _fetch(api, namespace, secret_name), namespace, secret_name)


async def ensure_certificates(api: Api, namespace: str, secret_name: str, sans: Sequence[str], now: datetime) -> Bundle:
    """Reads the bundle, makes or renews it where that is due. For the leader: others may only read.

    A former leader may have been faster: then the write is refused, and its bundle is taken. Raises ApiError.
    """
    for attempt in range(1, ATTEMPTS + 1):
        secret = await _fetch(api, namespace, secret_name)
        bundle = _parse(secret, namespace, secret_name)
        if bundle is not None and not should_rotate(bundle, sans, now):
            return bundle
        bundle = create(sans, now) if bundle is None else refresh(bundle, sans, now)
        try:
            await _write(api, namespace, secret_name, secret, bundle)
            return bundle
        except ApiError as error:
            if error.status not in (404, 409) or attempt == ATTEMPTS:
                raise
        await asyncio.sleep(spread(find_pause(attempt, first=0.05)))
    raise AssertionError("the last attempt returns or raises")


def _parse(secret: Mapping[str, Any] | None, namespace: str, name: str) -> Bundle | None:
    if secret is None:
        return None
    bundle = from_secret_data(secret.get("data"))
    if bundle is None and (secret["metadata"].get("labels") or {}).get(names.LABEL_APP) != names.LABEL_APP_VALUE:
        raise UnusableSecretError(
            f"secret {namespace}/{name}: tls.crt, tls.key and ca.crt are not all there and readable;"
            " put a certificate of the hub into it, or delete it and one is made"
        )
    return bundle


async def _fetch(api: Api, namespace: str, name: str) -> Mapping[str, Any] | None:
    try:
        secret: Mapping[str, Any] = await api.request("GET", path_of("v1", "secrets", namespace, name))
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return secret


async def _write(api: Api, namespace: str, name: str, existing: Mapping[str, Any] | None, bundle: Bundle) -> None:
    data = to_secret_data(bundle)
    if existing is None:
        metadata = {"name": name, "namespace": namespace, "labels": {names.LABEL_APP: names.LABEL_APP_VALUE}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}
        await api.request("POST", path_of("v1", "secrets", namespace), body)
        return
    # The version, which is in the metadata, makes the write fail where another replica was faster.
    await api.request("PUT", path_of("v1", "secrets", namespace, name), {**existing, "data": data})
