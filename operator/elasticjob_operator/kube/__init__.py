"""The connection to the API server: one client, the watches, the cache, the Lease and the queue of requests.

Nothing here knows what a job needs; it reads, writes, retries and hands on.
"""
