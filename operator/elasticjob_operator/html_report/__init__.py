"""The report of a job: one self-contained HTML file, created from samples and events. Pure.

The dashboard shows the same picture (`picture`) and uses the same style.
"""

from elasticjob_operator.html_report.page import Facts, render
from elasticjob_operator.html_report.picture import Picture, build_picture, build_table
from elasticjob_operator.html_report.plot import escape
from elasticjob_operator.html_report.style import STYLE

__all__ = ["STYLE", "Facts", "Picture", "build_picture", "build_table", "escape", "render"]
