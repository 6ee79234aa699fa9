"""The presentation of jobs: tables, details and text, as pure functions of what the client read.

Nothing here sends requests or writes to a terminal.
"""
