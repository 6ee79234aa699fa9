"""Requests to the API server: a request as a value, its errors, and the transport that sends it.

Both the operator (`kube`) and the Python client (`client`) build on it. Their differences stay with them: fair queues,
leadership and lenient watches in `kube`; kubeconfig rules and readable errors in `client`. Nothing here depends on
jobs.
"""
