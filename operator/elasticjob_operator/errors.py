"""Errors that end the operator, with the reason and the remedy."""

from __future__ import annotations


class UsageError(Exception):
    """The operator cannot run as configured; the message names the remedy."""
