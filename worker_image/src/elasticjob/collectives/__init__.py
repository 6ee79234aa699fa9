"""Collective operations with clear errors, and a check that all ranks make the same calls."""
