"""Compares ElasticJob with the tools that people use today, in the same run, on the same machine.

`python -m benchmarks.rescale | controlplane | hub | collectives | runtime`, or `python -m benchmarks` for all of them.
`harness` defines the result line.
"""
