"""Classification of failures, the restart budget, back-off, and faulty nodes.

Pure functions of the observed state. Nothing here writes the status or chooses pods.
"""
