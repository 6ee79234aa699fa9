"""Computes what to do for one job: `plan(seen, config) -> Plan`.

Pure: no clock, no I/O, no randomness. `plan.values` declares the input and the output.
"""
