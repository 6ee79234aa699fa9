"""What can go wrong between a user and the API server, one class a remedy, each with a text for people.

`explain` turns an answer of the API server into one of them. It is pure: the texts are tested as a table.
"""

from __future__ import annotations

from http import HTTPStatus

from elasticjob_operator.api import names
from elasticjob_operator.rest.errors import ApiError


class ClientError(Exception):
    """Anything a caller can be told about. The text says what to do."""


class ConfigError(ClientError):
    """No way to a cluster is configured, or it is configured wrongly."""


class UnreachableError(ClientError):
    """The API server does not answer."""


class UnauthorizedError(ClientError):
    """The API server does not know who asks."""


class ForbiddenError(ClientError):
    """The user may not do this."""


class NotFoundError(ClientError):
    """The object, the namespace or the whole resource does not exist."""


class AlreadyExistsError(ClientError):
    """There is an object of that name."""


class ConflictError(ClientError):
    """Somebody else changed the object in between."""


class InvalidError(ClientError):
    """The object is refused; the text names the field."""


class GoneError(ClientError):
    """The history that a watch asks for is no longer kept. Answered by listing again, never shown."""


class JobFailedError(ClientError):
    """The job ended in `Failed` while somebody waited for something else."""


class WaitTimeoutError(ClientError):
    """What was waited for did not come in time."""


def explain(error: ApiError, what: str) -> ClientError:
    """The error for an answer of the API server to `what` (for example: "get elasticjob digits")."""
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
    """`Forbidden`, `Not Found`, …; empty for a code that nobody has named."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
