"""The hub's own certificate authority, so that agents can verify the hub without other infrastructure.

A bundle is a CA, a serving certificate, and the certificates of the CAs that agents may trust. The serving certificate
is renewed after two thirds of its lifetime. The CA is renewed in two steps: the new one is first distributed to agents
and signs only later, so agents always trust the current certificate. Creation and checks are pure; `certificate_secret`
stores the bundle.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE: Final = timedelta(days=3650)
SERVING_LIFE: Final = timedelta(days=90)
# How long a new CA is distributed before it signs: kubelets refresh projected volumes within minutes.
CA_OVERLAP: Final = timedelta(days=1)
_SKEW: Final = timedelta(hours=1)
_RENEW_AT: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: bytes  # PEM
    key: bytes = field(repr=False)  # PEM; empty for an external certificate


@dataclass(frozen=True, slots=True)
class Bundle:
    """The CA and the serving certificate with their keys, in PEM. `repr` shows no keys."""

    authority: Authority
    certificate: bytes
    key: bytes
    next_authority: Authority | None = None  # already distributed; signs once agents have had time to load it
    retired: bytes = b""  # certificates of former CAs that agents must still trust

    @property
    def trust(self) -> bytes:
        """The content of the agents' `ca.crt`."""
        following = self.next_authority.certificate if self.next_authority is not None else b""
        return self.authority.certificate + following + self.retired

    def __repr__(self) -> str:
        return f"Bundle(until={_loaded(self.certificate).not_valid_after_utc.isoformat()})"


def create(sans: Sequence[str], now: datetime) -> Bundle:
    """A new CA and a serving certificate for these names and addresses."""
    return _sign(Bundle(_new_authority(now), b"", b""), sans, now)


def refresh(bundle: Bundle, sans: Sequence[str], now: datetime) -> Bundle:
    """The bundle as it should be now; the same object if nothing has to change."""
    if not bundle.authority.key:
        return bundle  # an external tool such as cert-manager created it and renews it
    following = bundle.next_authority
    if following is None and _is_old(bundle.authority.certificate, now):
        bundle = replace(bundle, next_authority=_new_authority(now))
    elif following is not None and _age(following.certificate, now) >= CA_OVERLAP:
        # Agents that reconnect during the change still trust only the old one.
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
    """The TLS context of the hub's listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Session tickets and cached sessions would cost memory for each connection.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    with _private_file(bundle.key + bundle.certificate) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """The standard library loads keys only from files: an in-memory one, since the root filesystem may be read-only."""
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


def check(bundle: Bundle, *, has_own_authority: bool) -> None:
    """Raises ValueError or TypeError if a required certificate or key cannot be parsed."""
    following = [bundle.next_authority] if bundle.next_authority is not None else []
    signing = [bundle.authority, *following] if has_own_authority else following
    for pem in (bundle.authority.certificate, bundle.certificate, *(one.certificate for one in following)):
        _loaded(pem)
    for key in (bundle.key, *(one.key for one in signing)):
        serialization.load_pem_private_key(key, None)


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
    # Every CA has a unique name, so that a client with two of them picks the right one.
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
        not_valid_before=now.replace(microsecond=0) - _SKEW,  # tolerates clock skew between nodes
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
        raise ValueError("sans: at least one DNS name or IP address of the hub is required")
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
