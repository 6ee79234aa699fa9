"""Requests to the API server of a devcluster: apply, drain, and waiting until something is ready."""
