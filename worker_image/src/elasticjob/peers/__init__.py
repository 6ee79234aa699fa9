"""Checkpoints that survive without a volume: the agents of a job hold copies of each other's files.

`records`, `watch`, `choice` and `lead` decide and do no I/O. `folder` reads and writes the script's directory, `chunks`
holds copies, `transport` is the authenticated connection between two agents, and `keeper` carries out what is decided.
"""
