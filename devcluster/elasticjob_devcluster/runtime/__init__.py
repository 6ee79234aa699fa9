"""The runtime of process nodes: it starts the processes of containers, keeps their logs and outlives the agent."""
