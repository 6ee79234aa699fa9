"""Membership: the health of each member, the next generation, and the directive of each agent.

Pure functions of the observed state. They do not choose pods, charge budgets or call the API server.
"""
