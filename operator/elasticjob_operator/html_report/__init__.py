"""The report of a job: one HTML file that needs nothing else, from what samples and events tell. Pure."""

from elasticjob_operator.html_report.page import Facts, render

__all__ = ["Facts", "render"]
