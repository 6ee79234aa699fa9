"""The server that agents connect to: TLS, authentication, limits, and one connection a pod.

It carries messages and keeps what agents said last. Who is in the world is decided in `membership`.
"""
