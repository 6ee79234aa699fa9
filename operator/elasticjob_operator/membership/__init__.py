"""Who is in the world: the health of each member, the next generation, and what each agent is told.

Pure functions of what was seen. Pods, budgets and the API server are not known here.
"""
