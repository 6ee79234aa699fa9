"""What was seen of the cluster, as frozen values: jobs, pods, nodes and agents, parsed from what the API server sent.

Nothing here raises for what an object holds, and nothing here decides. Objects of the API server go no further than
this folder; everything above works with its values.
"""
