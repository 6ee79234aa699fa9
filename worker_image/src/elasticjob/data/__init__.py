"""Samplers that keep their place when the world changes its size."""
