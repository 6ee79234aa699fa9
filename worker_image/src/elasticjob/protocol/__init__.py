"""The contract between operator, agents and workers: messages, directives, and the keys of a generation's store.

Contains no processes, and no sockets but those of the store.
"""
