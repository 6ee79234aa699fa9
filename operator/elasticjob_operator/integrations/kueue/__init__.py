"""Kueue: a job with a queue's label runs what the queue has admitted, and asks for the rest.

`values` reads Workloads and flavors, `quota` says what is admitted, `asking` what to ask for and what to give back;
these are pure. `manifests` builds what is written. `following` watches Kueue's objects into the `store`, `writing`
sends the requests, and `integration` puts it together for the passes of a job.
"""
