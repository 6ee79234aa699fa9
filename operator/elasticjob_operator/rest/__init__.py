"""Requests to the API server: a request as a value, the errors that answer it, and the one transport that sends it.

The operator (`kube`) and the Python client (`client`) both stand on it. What differs between them stays with them: fair
queues, leadership and lenient watches there; kubeconfig rules and errors in words here. Nothing here knows a job.
"""
