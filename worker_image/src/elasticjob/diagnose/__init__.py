"""Diagnostic tools: `elasticjob doctor`, the self-test and `elasticjob bench`."""
