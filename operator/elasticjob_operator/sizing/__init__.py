"""How big a job may be: size sources, and the one function that composes them.

A source is a pure function in a file of its own, and one line in a list of `compose`. It knows nothing of pods that are
made, deleted or in a world. A node that goes is no source: its pod is replaced one for one, and the size stays.
"""
