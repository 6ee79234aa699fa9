"""Every private name of torch that the worker uses, and every difference between torch versions.

Each name is behind one function here, which documents its purpose and works without it. The rest of the worker calls
these functions and uses no private names of torch. `catalogue` lists all names with the cost of their absence. Nothing
here depends on sessions, the agent or the hub.
"""
