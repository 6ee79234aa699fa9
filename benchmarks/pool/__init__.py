"""Sizes of many jobs on one pool: a simulator with the operator's own decisions, and a run on a real devcluster."""
