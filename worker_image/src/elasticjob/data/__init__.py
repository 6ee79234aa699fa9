"""Samplers that keep their position when the world changes its size."""
