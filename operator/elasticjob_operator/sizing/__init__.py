"""How many pods a job may have: size sources, and the function that composes them.

A source is a pure function in its own module and one entry in a list in `compose`. It does not create, delete or choose
pods. A node drain is not a size source: the pod is replaced one for one, and the size stays.
"""
