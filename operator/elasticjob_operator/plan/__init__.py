"""What is to be done for one job: `plan(seen, config) -> Plan`, and what it is made of.

Pure: no clock, no I/O, no randomness. `plan.values` declares what goes in and what comes out.
"""
