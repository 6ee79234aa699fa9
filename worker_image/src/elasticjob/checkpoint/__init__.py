"""Atomic checkpoints: written beside the old one, published by a rename, loadable in a world of any size."""

from elasticjob.checkpoint.checkpointer import Checkpointer
from elasticjob.checkpoint.requests import clear, on_signal, requested

__all__ = ["Checkpointer", "clear", "on_signal", "requested"]
