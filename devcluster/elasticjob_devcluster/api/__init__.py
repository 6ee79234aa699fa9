"""What is said to the API server of a devcluster: requests, apply, drain, and waiting until something is ready."""
