"""A node of the devcluster: `runtime` is its container runtime, `agent` its kubelet. They are two processes,
as on a real node.
"""
