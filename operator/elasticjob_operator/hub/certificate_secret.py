"""The Secret with the hub's certificates.

It is a `kubernetes.io/tls` Secret with the keys that people and tools expect, and some more. The leader writes it, the
other replicas read it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from elasticjob_operator.api import names
from elasticjob_operator.backoff import find_pause, spread
from elasticjob_operator.hub import certificates
from elasticjob_operator.hub.certificates import Authority, Bundle
from elasticjob_operator.kube.client import Api
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import path_of

ATTEMPTS: Final = 5  # attempts to write the Secret under concurrent writes


class UnusableSecretError(ValueError):
    """The Secret was not created by the operator and contains no certificate for the hub."""


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
    """None if the Secret contains no complete bundle. A Secret without the CA's key has an external certificate."""
    try:
        raw = {key: base64.b64decode(value, validate=True) for key, value in (data or {}).items()}
        foreign = "authority.key" not in raw
        authority = Authority(raw["ca.crt" if foreign else "authority.crt"], raw.get("authority.key", b""))
        following = None
        if raw.get("next-authority.crt"):
            following = Authority(raw["next-authority.crt"], raw["next-authority.key"])
        bundle = Bundle(authority, raw["tls.crt"], raw["tls.key"], following, raw.get("retired.crt", b""))
        certificates.check(bundle, has_own_authority=not foreign)
        return bundle
    except (KeyError, ValueError, TypeError):
        return None


async def read_certificates(api: Api, namespace: str, secret_name: str) -> Bundle | None:
    """The content of the Secret; None if it does not exist, or if the leader has yet to repair it."""
    return _parse(await _fetch(api, namespace, secret_name), namespace, secret_name)


async def ensure_certificates(api: Api, namespace: str, secret_name: str, sans: Sequence[str], now: datetime) -> Bundle:
    """Read the bundle; create or renew it if that is due. Only for the leader: others may only read.

    If a former leader was faster, the write is rejected and its bundle is used. Raises ApiError.
    """
    for attempt in range(1, ATTEMPTS + 1):
        secret = await _fetch(api, namespace, secret_name)
        bundle = _parse(secret, namespace, secret_name)
        if bundle is not None and not certificates.should_rotate(bundle, sans, now):
            return bundle
        bundle = certificates.create(sans, now) if bundle is None else certificates.refresh(bundle, sans, now)
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
            f"secret {namespace}/{name}: tls.crt, tls.key or ca.crt is missing or unreadable;"
            " add a certificate for the hub, or delete the Secret so that the operator creates one"
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
    # The resourceVersion in the metadata makes the write fail if another replica was faster.
    await api.request("PUT", path_of("v1", "secrets", namespace, name), {**existing, "data": data})
