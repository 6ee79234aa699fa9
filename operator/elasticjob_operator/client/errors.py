"""Errors between a user and the API server: one class for each remedy, each with a readable message.

`explain` converts a response of the API server to one of them. It is pure, and tested as a table of messages.
"""

from __future__ import annotations

from http import HTTPStatus

from elasticjob_operator.api import names
from elasticjob_operator.rest.errors import ApiError


class ClientError(Exception):
    """The base class of the client's errors. The message names the remedy."""


class ConfigError(ClientError):
    """No cluster is configured, or the configuration is invalid."""


class UnreachableError(ClientError):
    """The API server does not respond."""


class UnauthorizedError(ClientError):
    """The API server does not accept the user's credentials."""


class ForbiddenError(ClientError):
    """The user lacks the permission."""


class NotFoundError(ClientError):
    """The object, the namespace or the whole resource does not exist."""


class AlreadyExistsError(ClientError):
    """An object of that name exists."""


class ConflictError(ClientError):
    """The object was changed by someone else since it was read."""


class InvalidError(ClientError):
    """The object is invalid; the message names the field."""


class GoneError(ClientError):
    """The API server no longer has the history that a watch requested. Handled by listing again; never shown."""


class JobFailedError(ClientError):
    """The job ended in `Failed` while the caller waited for another condition."""


class WaitTimeoutError(ClientError):
    """The condition was not met in time."""


def explain(error: ApiError, what: str) -> ClientError:
    """The error for a response of the API server to `what` (for example "get elasticjob digits")."""
    status, phrase = error.status, phrase_of(error.status)
    said = error.message.strip() or phrase
    if status == 401:
        return UnauthorizedError(f"{what}: the API server does not know you (401): renew the login of this context")
    if status == 403:
        return ForbiddenError(f"{what}: not allowed: {said}. docs/cli.md lists the rights that each command needs")
    if status == 404 and not error.reason and "page not found" in said:
        return NotFoundError(
            f"{what}: this cluster has no {names.PLURAL}.{names.GROUP}: install the operator's CRD (kubectl apply "
            "--server-side -f crds/), or check --context"
        )
    if status == 404:
        return NotFoundError(f"{what}: not found: {said}")
    if status == 409 and error.reason == "AlreadyExists":
        return AlreadyExistsError(f"{what}: {said}: choose another name, or delete the old one first")
    if status == 409:
        return ConflictError(f"{what}: changed by somebody else meanwhile: {said}: try again")
    if status == 410:
        return GoneError(f"{what}: {said}")
    if status in (400, 422):
        return InvalidError(f"{what}: refused: {said}")
    return ClientError(f"{what}: the API server answered {status} {phrase}: {said}".replace("  ", " "))


def phrase_of(status: int) -> str:
    """`Forbidden`, `Not Found`, …; empty for an unassigned status code."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
