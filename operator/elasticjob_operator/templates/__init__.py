"""Templates of jobs: how the spec of an ElasticJobTemplate and that of a job make one spec, and when. Pure.

A job takes its template once, before its first pod, and keeps a copy in `status.template`. From then on only the copy
counts, so that nobody changes a running job by changing a template. `merge` puts two specs together; `taking` decides
what a job that waits for its template does.
"""
