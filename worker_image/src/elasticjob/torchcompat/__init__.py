"""Every private name of torch that the worker uses, and every difference between its versions.

Each name has one function here, which says what the name is for and does without where it is gone. The rest of the
worker calls these functions and names nothing private of torch itself. `catalogue` lists all names with what their
absence costs. Nothing here knows of sessions, the agent or the hub.
"""
