"""Nodes that run containers: kubelet, kube-proxy, containerd and runc, for what processes cannot show.

Each node lives in mount, network and process namespaces of its own, joined to the others by a bridge on this machine.
So two nodes are two nodes: each has its iptables, its pod network and its runtime, and whatever happens, all of it is
gone when the first process of the namespaces is. Needs root and the packages of `tools.PROGRAMS`.
"""
