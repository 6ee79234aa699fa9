"""Image references. There are no images: any well-formed reference runs in the host's environment.

A registry host below `.invalid` can never resolve (RFC 2606), so such a reference fails like a pull from it.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST: Final = (
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::[0-9]+)?"
)
_REFERENCE: Final = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>{_PART}(?:/{_PART})*)(?::[\w][\w.-]{{0,127}})?(?:@[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{{32,}})?"
)


def pull_error(image: str) -> tuple[str, str] | None:
    """Reason and message of a failed pull, or None if the image is available."""
    match = _REFERENCE.fullmatch(image)
    if match is None:
        return "InvalidImageName", f'Failed to apply default image tag "{image}": couldn\'t parse image reference'
    first = image.split("/", maxsplit=1)[0]
    host = first if "/" in image and ("." in first or ":" in first or first == "localhost") else "docker.io"
    name = host.split(":")[0]
    if name.endswith(".invalid"):
        return "ErrImagePull", f'failed to pull image "{image}": dial tcp: lookup {name}: no such host'
    return None
