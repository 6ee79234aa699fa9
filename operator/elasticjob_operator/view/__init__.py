"""Jobs for people: tables, details and words, as pure functions of what the client read.

Nothing here asks the API server, and nothing writes to a terminal.
"""
