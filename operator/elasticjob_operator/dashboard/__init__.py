"""The dashboard: a web page about all jobs and each job, rendered here and kept up to date with server-sent events.

`guard` decides who may ask, `board` holds what a watch of the jobs delivers, `listpage` and `jobpage` render it, and
`server` connects them. It does without rich, so that the operator's image can serve it. The browser gets one script
and one style, and loads nothing from elsewhere.
"""
