"""The process: options, start and stop, the loop over all jobs, health and metrics.

The only folder that puts the parts together.
"""
