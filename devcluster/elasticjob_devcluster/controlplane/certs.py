"""The certificates of one devcluster: its own authority, created on each start, valid for thirty days.

The keys are elliptic, since generating them takes a millisecond. They protect only a cluster on a laptop, but it is
real TLS with real identities: the API server authenticates all clients by these certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Pair:
    """The paths of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and writes them to one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.pair = self._paths("ca")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "elasticjob-devcluster")])
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._write(self.pair, builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(
        self, file: str, common_name: str, *, organization: str | None = None, addresses: tuple[str, ...] = ()
    ) -> Pair:
        """A certificate for servers and clients: its subject is the Kubernetes user, its organization the group."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        builder = self._builder(x509.Name(attributes), key.public_key())
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        if addresses:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(a) for a in addresses]), critical=False
            )
        pair = self._paths(file)
        self._write(pair, builder.sign(self._key, hashes.SHA256()), key)
        return pair

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + LIFETIME)
        )

    def _paths(self, file: str) -> Pair:
        return Pair(self.directory / f"{file}.crt", self.directory / f"{file}.key")

    @staticmethod
    def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_secret(pair.key, _pem(key))


def make_service_account_key(path: Path) -> None:
    """The key that signs service-account tokens; RSA, which every version of the API server supports."""
    write_secret(path, _pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)))


def write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
