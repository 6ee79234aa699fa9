"""Nodes that run containers: kubelet, kube-proxy, containerd and runc, for features that process nodes lack.

Each node has its own mount, network and process namespaces, and a bridge on this machine connects them. So each node
has its own iptables, pod network and runtime, and everything ends with the first process of the namespaces. Requires
root and the packages of `tools.PROGRAMS`.
"""
