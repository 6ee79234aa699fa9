"""The report of a job: one self-contained HTML file, created from samples and events. Pure."""

from elasticjob_operator.html_report.page import Facts, render

__all__ = ["Facts", "render"]
