"""Access to the API server: the client, the watches, the cache, the Lease and the queue of requests.

Nothing here makes decisions about jobs.
"""
