"""The last tier: checkpoints of `spec.checkpoints` in a store that outlives all pods of the job.

`layout` and `garbage` decide and do no I/O. `storage` is the thin layer over fsspec, `writing` sends what the pods of a
world hold and writes the manifests, `reading` finds whole saves and reads them, and `archive` is what an agent has of
all this. Stores are reached through fsspec alone: there is no client of our own here, but for a folder of this machine.
"""
