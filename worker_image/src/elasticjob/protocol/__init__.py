"""What operator, agents and workers agree on: messages, directives, and the keys of a generation's store.

No sockets and no processes.
"""
