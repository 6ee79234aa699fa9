"""Counts instructions: of what the operator and the runtime do again and again, and of the start of a pod.

Unlike seconds, they are the same on a busy machine. The modules `*_cases` say what is counted. The kept results
are the bounds of `tests/integration/test_benchmarks_instructions.py`.
"""
