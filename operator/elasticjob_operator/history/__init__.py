"""The one history of a job: what happened to its worlds as small records, and what is computed of them.

Decisions and statuses give records, and pure reducers make of them the goodput with the categories of lost time, the
events, the counters of the metrics and the worlds of a report. Nothing else computes any of these.
"""
