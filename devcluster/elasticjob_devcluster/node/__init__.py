"""A node of the devcluster: `runtime` is its container runtime, `agent` its kubelet. They are two processes, like on a
real node.
"""
