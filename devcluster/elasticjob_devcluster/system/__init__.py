"""Processes, sockets, addresses and relays of this machine. Nothing here depends on Kubernetes."""
