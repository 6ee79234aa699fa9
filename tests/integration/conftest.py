"""Fixtures that several modules here share."""

from __future__ import annotations

from integration.e2e_platform import platform

__all__ = ["platform"]
