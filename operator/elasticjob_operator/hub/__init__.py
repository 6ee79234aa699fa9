"""The server that agents connect to: TLS, authentication, limits, and one connection per pod.

It transports messages and keeps the latest state of each agent. `membership` decides who is in the world.
"""
