"""What failed, whose failure it is, and how long to wait before the next try.

Pure functions of what was seen. Nothing here writes the status or chooses pods.
"""
