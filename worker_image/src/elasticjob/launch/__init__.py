"""Warm start of worker processes: a fork server with torch already imported, and the workers that it forks."""
