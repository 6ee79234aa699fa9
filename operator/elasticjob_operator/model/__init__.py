"""Frozen values for jobs, pods, nodes and agents, parsed from the objects that the API server returns.

Parsing never raises because of an object's content, and decides nothing. Raw API objects stay inside this folder; the
rest of the operator works with these values.
"""
