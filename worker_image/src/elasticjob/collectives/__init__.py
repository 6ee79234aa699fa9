"""Collective operations with clear errors, and checks that all ranks call the same ones."""
