"""The operator process: options, start and stop, the reconcile loop, health and metrics.

The only folder that wires the other parts together.
"""
