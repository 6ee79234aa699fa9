"""Counts instructions: of what the operator and the runtime do again and again, and of the start of a pod.

Unlike seconds, they are the same on a busy machine. `operator_cases` and `runtime_cases` say what is counted. The
results that are kept are the bounds of `tests/integration/test_benchmarks_instructions.py`.
"""
