"""Compares ElasticJob with the tools that people use today, in the same run, on the same machine.

`python -m benchmarks.scoreboard | controlplane | hub | collectives | runtime`, or `python -m benchmarks` for all.
`harness` defines the result line of all but the scoreboard, which compares more than two.
"""
