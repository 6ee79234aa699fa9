"""The history of a job: small records of what happened to its worlds, and what is computed from them.

Statuses are compared to give records. Pure reducers turn the records into goodput with its categories of lost time,
events, counters for metrics, and the worlds of a report. Nothing else computes any of these.
"""
